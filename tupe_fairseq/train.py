"""fairseq-train with this plugin, in as many processes as there are GPUs, or as NPROC says.

    [NPROC=N] python -m tupe_fairseq.train [flags of fairseq-train]

scripts/pretrain.sh and scripts/finetune_glue.sh call it. What this package refuses is one sentence, in any
number of processes, and any other error a traceback. LOGLEVEL=DEBUG shows the whole configuration, the
modules of the model, and the warnings that fairseq's code causes in newer libraries.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

from tqdm.contrib.logging import logging_redirect_tqdm

from .workers import launch, leave_word, local_workers, worker_flags

HERE = Path(__file__).resolve().parent


def main() -> None:
    """The command line."""
    command = os.environ.get("TUPE_COMMAND", "train")
    given = sys.argv[1:]
    try:
        count = local_workers(given, os.environ)
        if count > 1:
            launch(count, "tupe_fairseq.train", given)
        else:
            train(given)
    except (ValueError, OSError, FloatingPointError) as error:
        if not refused_here(error):
            raise
        sys.exit(1 if leave_word(str(error), os.environ) else f"{command}: {error}")


def train(given: list[str]) -> None:
    """fairseq-train in this process; the given flags come last and win."""
    if os.environ.get("LOGLEVEL", "").upper() != "DEBUG":
        quieten()
    from fairseq_cli.train import cli_main

    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    lines = [] if terminal else ["--no-progress-bar"]  # fairseq looks at stderr alone, and logs to stdout
    sys.argv[1:] = [*worker_flags(given, os.environ), *lines, *given]
    with logging_redirect_tqdm() if terminal else nullcontext():  # lines above the bar, not behind it
        cli_main()


def refused_here(error: BaseException) -> bool:
    """Whether a file of this package raised it, on purpose."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).resolve().parent == HERE


def quieten() -> None:
    """Leaves out of the log what nobody reads twice."""
    # The configuration and the model are logged as objects; sentences are strings.
    logging.getLogger("fairseq_cli.train").addFilter(lambda record: isinstance(record.msg, str))
    logging.getLogger("fairseq.tasks.fairseq_task").setLevel(logging.WARNING)  # 4 lines each epoch
    for category, message, module in (
        (UserWarning, "", "hydra"),
        (UserWarning, r"\s*'config' is validated", ""),
        (UserWarning, "'pin_memory' argument is set", ""),
        (FutureWarning, r".torch\.cuda\.amp", "fairseq"),
    ):
        warnings.filterwarnings("ignore", message, category, module)


if __name__ == "__main__":
    main()
