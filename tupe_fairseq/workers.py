"""Processes that train one model together: how many, what fairseq is told of them, and why one ended.

torchrun's engine starts them, whether ``launch`` runs it for this machine or a user does for many: it gives
each process WORLD_SIZE, RANK and LOCAL_RANK, and ends all when one ends. fairseq itself looks at these only
if it was told of more than one process, and would otherwise train a model in each.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

# Where torchrun, SLURM's srun and Open MPI's mpirun say how many processes they started together.
COUNTS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # set by torchrun: where a process leaves its last words


def check_workers(told: int, environment: Mapping[str, str]) -> None:
    """Refuses a process that is one of several without knowing.

    Args:
        told: fairseq's --distributed-world-size.

    Raises:
        ValueError: more processes were started together than fairseq was told of.
    """
    for name in COUNTS:
        count = environment.get(name, "")
        if count.isdigit() and int(count) > told:
            raise ValueError(
                f"{count} processes were started together ({name}), and fairseq was told of {told}, so that "
                "each would train a model of its own; start torchrun with scripts/pretrain.sh, or give "
                f"--distributed-world-size {count} and its --distributed-rank to each, or unset {name}"
            )


def on_cpu(flags: Sequence[str]) -> bool:
    """Whether a training with these flags runs on the CPU."""
    return "--cpu" in flags or not torch.cuda.is_available()


def local_workers(flags: Sequence[str], environment: Mapping[str, str]) -> int:
    """Processes to start on this machine; 1 where this process is to train itself.

    Args:
        flags: of fairseq-train. Whoever gives its --distributed-... flags has started all processes.
        environment: with NPROC, if that is wished; else it is one a GPU, or one on the CPU.

    Raises:
        ValueError: NPROC is no number, or more than there are GPUs, or others have started them.
    """
    wished, together = environment.get("NPROC", ""), environment.get("WORLD_SIZE", "1")
    gpus = 0 if on_cpu(flags) else torch.cuda.device_count()
    if together != "1" or any(flag.startswith("--distributed-") for flag in flags):
        if wished:
            raise ValueError(
                f"NPROC={wished} starts processes, and torchrun (or --distributed-... flags) did already; "
                "leave NPROC out"
            )
        return 1
    if not wished:
        return max(1, gpus)
    if not wished.isdigit() or int(wished) < 1:
        raise ValueError(f"NPROC={wished} is no number of processes; give 1 or more")
    if gpus and int(wished) > gpus:
        raise ValueError(f"NPROC={wished}, and this machine has {gpus} GPUs that torch can use")
    return int(wished)


def worker_flags(flags: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What fairseq is told about this process, as one of those that torchrun started, or alone."""
    # Every process reads checkpoints itself: torch 2.6 and newer refuse what fairseq sends from one to all.
    words = ["--load-checkpoint-on-all-dp-ranks"]
    if any(flag.startswith("--distributed-") for flag in flags):
        return words
    count = environment.get("WORLD_SIZE", "1")
    words += ["--distributed-world-size", count]
    if count != "1":
        words += ["--distributed-rank", environment["RANK"], "--distributed-init-method", "env://"]
        words.append("--distributed-no-spawn")
        if on_cpu(flags):
            # fairseq gives torch's DDP the number of a GPU, which that refuses on the CPU.
            words += ["--cpu", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    return words


def launch(count: int, module: str, arguments: Sequence[str]) -> None:
    """Runs a module in so many processes of this machine, by torchrun's engine, until all have ended well.

    Raises:
        ValueError: one has not; the sentence says which, and why.
        SystemExit: a signal ended all, with 128 + its number.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.pop("NPROC", None)
    # torchrun would give each process one thread.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # our sentence says it
    try:
        run(parse_args(["--standalone", "--nproc-per-node", str(count), "-m", module, *arguments]))
    except ChildFailedError as error:
        ended = {
            rank: (failure.exitcode, failure.error_file_data.get("message"))
            for rank, failure in error.failures.items()
        }
        raise ValueError(explain(ended, count)) from None
    except SignalException as error:
        raise SystemExit(128 + int(error.sigval)) from None


def explain(ended: Mapping[int, tuple[int, object]], count: int) -> str:
    """Why processes ended, in a sentence about the one that ended first.

    Args:
        ended: of each rank the exit status, -n where signal n ended it, and its last words (`leave_word`).
            When one ends, torchrun ends the others by SIGTERM, or they fail because they wait for it.
    """

    def cause_first(rank: int) -> tuple[bool, bool, bool, int]:
        status, word = ended[rank]
        return status == -signal.SIGTERM, status > 0 and not word, status > 0, rank

    rank = min(ended, key=cause_first)
    status, word = ended[rank]
    if isinstance(word, dict) and word.get("message"):
        return str(word["message"])
    if status >= 0:
        return f"worker {rank} of {count} ended with status {status}; what it said stands above"
    name = signal.Signals(-status).name
    memory = " (the system does that where memory runs out)" if name == "SIGKILL" else ""
    return (
        f"worker {rank} of {count} was ended by {name}{memory}, and the others with it; "
        "the same command goes on from the last checkpoint"
    )


def leave_word(sentence: str, environment: Mapping[str, str]) -> bool:
    """Leaves the last words of this process for torchrun; returns whether one listens."""
    file = environment.get(ERROR_FILE)
    if not file:
        return False
    message = {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}
    Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")
    return True
