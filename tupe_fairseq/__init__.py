"""TUPE for fairseq: give this folder to ``--user-dir``.

Importing it registers the model, tasks and criterion with fairseq. Where fairseq is not installed, the
torch-only modules ``positional``, ``attention`` and ``encoder`` can still be imported.
"""

from importlib.util import find_spec

__version__ = "0.1.0"

if find_spec("fairseq") is not None:
    from . import masked_lm, model  # noqa: F401  (they register themselves)
