"""fairseq-validate with this plugin: python -m tupe_fairseq.validate [flags of fairseq-validate]

The file that --path names is read with the safe loader first: one that is damaged, of another plugin, or
would run code ends in a sentence. What this package refuses is one sentence, any other error a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys

from . import checkpoints
from .train import HERE, quieten, refused_here


def main() -> None:
    """The command line."""
    given = sys.argv[1:]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--path", default="")
    try:
        for path in filter(None, parser.parse_known_args(given)[0].path.split(os.pathsep)):
            checkpoints.model_weights(checkpoints.load(path), path)
        quieten()
        from fairseq_cli.validate import cli_main

        sys.argv[1:] = ["--user-dir", str(HERE), *given]
        cli_main()
    except (ValueError, OSError) as error:
        if not refused_here(error):
            raise
        sys.exit(f"validate: {error}")


if __name__ == "__main__":
    main()
