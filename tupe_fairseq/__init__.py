"""TUPE for fairseq: give this folder to ``--user-dir``.

Importing it registers the model, the tasks and the criterion with fairseq. Where fairseq is not installed,
the torch-only modules ``positional``, ``attention`` and ``encoder`` can still be imported. Commands that only
read and write text and ids do without fairseq, which saves them two seconds and 270 MB.
"""

import logging
import sys
import warnings
from importlib.util import find_spec

__version__ = "0.1.0"

_WITHOUT_FAIRSEQ = {f"{__name__}.{command}" for command in ("corpus", "glue_data", "word_order")}


def _is_for_text() -> bool:
    """Whether Python imports the package on its way to `python -m` of a command that does without fairseq.

    `sys.argv` begins with "-m" just then (Python's documentation), and `sys.orig_argv`, which Python 3.9 has
    not, names the command.
    """
    named = set(getattr(sys, "orig_argv", ()))
    return sys.argv[:1] == ["-m"] and not _WITHOUT_FAIRSEQ.isdisjoint(named)


def _register() -> None:
    """Registers with fairseq, and leaves logging as it was: fairseq's import sends every line to stderr."""
    root, disabled = logging.getLogger(), logging.root.manager.disable
    level, handlers = root.level, root.handlers[:]
    logging.disable(logging.INFO)
    try:
        from . import masked_lm, model, optimizer, sentence_prediction  # noqa: F401  (they register themselves)
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        root.handlers[:] = handlers


# The tasks import `glue`, so python -m tupe_fairseq.glue would warn that it is imported already. It is a
# table with a command at its end, and may well be there twice.
warnings.filterwarnings("ignore", f"'{__name__}.glue' found in sys.modules", RuntimeWarning)
if not _is_for_text() and find_spec("fairseq") is not None:
    _register()
