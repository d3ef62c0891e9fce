"""The paper's protocol on GLUE: every learning rate with every seed, for every task.

scripts/sweep_glue.sh calls it, and says what it does.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from contextlib import closing
from pathlib import Path

from . import checkpoints
from .glue_plan import Run, choose, fingerprint, parse_rates, parse_seeds, plan, read_flags, settings
from .glue_register import locked, make_ready, register
from .glue_results import Result, best_validation, show_in_tensorboard
from .jobs import Ended, Job, catch_signals, gpu_slots, run_jobs

LOG_FILE = "train.log"


class GlueSweep:
    """Runs of scripts/finetune_glue.sh, and what they have in common."""

    def __init__(self, args: argparse.Namespace, given: list[str]) -> None:
        """Reads what is to be done; writes nothing.

        Args:
            args: of the command line.
            given: flags of fairseq-train.

        Raises:
            OSError: a file or folder does not exist.
            ValueError: something cannot be done.
        """
        self.args, self.given = args, given
        rates, seeds = parse_rates(args.rates), parse_seeds(args.seeds)
        self.flags = read_flags(args.config, given)
        tasks, left_out = choose(args.tasks, args.glue_bin)
        if left_out:
            print(
                f"left out, not of GLUE or without train or dev rows: {', '.join(left_out)}", file=sys.stderr
            )
        self.runs = plan(tasks, rates, seeds, args.runs)
        options = checkpoints.model_options(checkpoints.load(args.checkpoint), args.checkpoint)
        self.variant = options["variant"]
        self.done = 0

    def command(self, run: Run) -> list[str]:
        """One run of scripts/finetune_glue.sh."""
        paths = [str(path) for path in (self.args.glue_bin, self.args.checkpoint, run.folder)]
        own = ["--lr", run.rate, "--seed", str(run.seed)]
        return ["bash", str(self.args.finetune), run.task, *paths, *own, *self.given]

    def sweep(self) -> list[str]:
        """Does what is not finished yet; returns what failed, with its logs.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: the folder cannot be used.
        """
        stop = catch_signals()
        digest = fingerprint(self.args.checkpoint)
        self.settings = {run.task: settings(run.prepared, digest, self.flags) for run in self.runs}
        with locked(self.args.runs) as lock:
            finished = register(self.runs, self.settings, self.args.runs)
            for run in self.runs:
                if run.folder in finished:
                    self._progress(run, f"{_headline(run, finished[run.folder])}, finished before")
            failed = self._work([run for run in self.runs if run.folder not in finished], stop, lock)
        if stop:
            name = signal.Signals(stop[0]).name
            print(f"sweep_glue: stopped by {name}; the same command goes on", file=sys.stderr)
            sys.exit(128 + stop[0])
        return failed

    def _work(self, runs: list[Run], stop: list[int], lock: int) -> list[str]:
        """Runs them; returns what failed."""
        for run in runs:
            make_ready(run.folder)
        common = {"CONFIG": str(self.args.config), "NPROC": "1"}
        gpus = [{}] if "--cpu" in self.flags else gpu_slots(os.environ)
        jobs = [Job(self.command(run), run.folder / LOG_FILE) for run in runs]
        by_log, failed = dict(zip((job.log for job in jobs), runs)), []
        with closing(run_jobs(jobs, [{**gpu, **common} for gpu in gpus], stop, [lock])) as ends:
            for ended in ends:
                run = by_log[ended.job.log]
                try:
                    result = self._result(run, ended)
                    self._progress(run, f"{_headline(run, result)}, {result.seconds:.0f} s")
                except (OSError, ValueError) as error:
                    self._progress(run, f"failed: {error}")
                    failed.append(f"{run} ({ended.job.log})")
        return failed

    def _result(self, run: Run, ended: Ended) -> Result:
        """The result of a run that ended well, which is written.

        Raises:
            OSError, ValueError: it did not end well, or its logs lack something.
        """
        if ended.status:
            raise ValueError(f"status {ended.status}, see {ended.job.log}")
        dev_sets = [split for split in run.prepared.rows if split.startswith("valid")]
        update, metrics = best_validation(run.folder, dev_sets, run.prepared.task.metrics)
        result = Result(
            task=run.prepared.task,
            rate=run.rate,
            seed=run.seed,
            variant=self.variant,
            checkpoint=str(self.args.checkpoint.resolve()),
            settings=self.settings[run.task],
            update=update,
            metrics=metrics,
            seconds=round(ended.seconds, 1),
        )
        show_in_tensorboard(run.folder, result, self.flags.get("--batch-size", ""))
        result.save(run.folder)
        return result

    def _progress(self, run: Run, what: str) -> None:
        self.done += 1
        print(f"[{self.done}/{len(self.runs)}] {run}: {what}", flush=True)


def _headline(run: Run, result: Result) -> str:
    """The number that chooses the rate."""
    metric = run.prepared.task.metrics[0]
    return f"{metric} {100 * result.metrics['valid'][metric]:.2f}"


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    words = sys.argv[1:] if argv is None else argv
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="sweep_glue", allow_abbrev=False, description=__doc__)
    parser.add_argument("glue_bin", type=Path, metavar="GLUE_BIN")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="default: all of GLUE that GLUE_BIN has")
    parser.add_argument("--finetune", type=Path, required=True, help="scripts/finetune_glue.sh")
    parser.add_argument("--config", type=Path, required=True, help="the recipe")
    parser.add_argument("--rates", required=True, help="learning rates, with spaces between")
    parser.add_argument("--seeds", required=True, help="with spaces between")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of runs not yet finished")
    args, unknown = parser.parse_known_args(words[:split])
    if unknown:
        sys.exit(f"sweep_glue: {unknown[0]} is not known here; flags of fairseq-train stand behind --")
    try:
        sweep = GlueSweep(args, words[split + 1 :])
        if args.dry_run:
            for run in sweep.runs:
                if not Result.load(run.folder):
                    print(shlex.join(sweep.command(run)))
            return
        failed = sweep.sweep()
    except (OSError, ValueError) as error:
        sys.exit(f"sweep_glue: {error}")
    if failed:
        sys.exit(f"sweep_glue: {len(failed)} of {len(sweep.runs)} runs failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
