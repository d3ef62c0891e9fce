"""The work of soak.sh: a small pre-training among random kills, full disks and a cut file; a table."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tiny_run
from tiny_run import command, equal, losses, result, said, start, train

from tupe_fairseq.save_folder import to_go_on_from

LONG = {"max_update": "400", "total_num_update": "400", "log_interval": "7", "keep_interval_updates": "2"}
ROOM = (0, 150_000)  # bytes left on a full disk: none, or for one checkpoint


def mount_small_disk(folder: Path, kilobytes: int) -> bool:
    """A disk of its own for SAVE_DIR, where this user may mount one."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


def last_update(save_dir: Path) -> int:
    """The update that a run goes on from."""
    checkpoint = to_go_on_from(save_dir)
    return checkpoint.updates if checkpoint else 0


class Soak:
    """One run, and what happened to it."""

    def __init__(self, folder: Path, events: int, seed: int) -> None:
        self.folder, self.random, self.rows = folder, random.Random(seed), []
        self.words = command(tiny_run.make_corpora(folder / "corpora"), folder / "disk" / "run", **LONG)
        self.save_dir, self.log = folder / "disk" / "run", folder / "run.log"
        self.cut, *full = self.random.sample(range(2, events), 1 + len(ROOM))
        self.full = dict(zip(full, ROOM))

    def unbroken(self) -> Path:
        save_dir = self.folder / "unbroken"
        words = command(self.words[2], save_dir, **LONG)
        status, output = train(words, self.folder / "unbroken.log")
        assert status == 0, output
        return save_dir

    def kill(self, number: int) -> None:
        """Lets the run say a random number of lines after it has started to train, and kills it.

        Every other time in or near the next write of a checkpoint.
        """
        self.log.unlink(missing_ok=True)
        before, lines = last_update(self.save_dir), self.random.randrange(200)
        run = start(self.words, self.log)
        with self.log.open("rb") as log:
            training = writing = False
            while run.poll() is None and (lines or not writing):
                line = log.readline()
                training |= b"Start iterating" in line
                lines -= training and bool(line) and lines > 0
                writing = number % 2 == 0 or (lines == 0 and b"Saving checkpoint" in line)
        time.sleep(self.random.uniform(0, 0.02 if number % 2 else 0.1))
        os.killpg(run.pid, signal.SIGKILL)
        status = run.wait()
        half = [path.name for path in self.save_dir.glob(".*.part")]
        self.tell(number, "SIGKILL" if status < 0 else f"ended, status {status}", before, " ".join(half))

    def fill_disk(self, number: int, mounted: bool) -> None:
        """Until almost no room is left; makes room again when the run has ended."""
        before, ballast = last_update(self.save_dir), self.folder / "disk" / "ballast"
        words = self.words
        if mounted:
            free = shutil.disk_usage(ballast.parent).free
            ballast.write_bytes(bytes(max(0, free - self.full[number])))
        else:
            words = ["bash", "-c", 'ulimit -f 64 && exec "$@"', "bash", *words]
        status, output = train(words, self.log)
        assert status == 1, output
        ballast.unlink(missing_ok=True)
        self.tell(number, "full disk" if mounted else "limit of file sizes", before, said(output))

    def cut_file(self, number: int) -> None:
        """Takes a random part of the newest file away."""
        last, before = self.save_dir / "checkpoint_last.pt", last_update(self.save_dir)
        content = last.read_bytes()
        last.write_bytes(content[: self.random.randrange(len(content))])
        self.tell(number, f"{last.name} cut", before, "")

    def tell(self, number: object, event: str, before: int, note: str) -> None:
        self.rows.append(
            (number, event, before, last_update(self.save_dir), note.replace(str(self.folder), ""))
        )
        print(self.rows[-1], file=sys.stderr, flush=True)

    def end(self) -> None:
        before = last_update(self.save_dir)
        status, output = train(self.words, self.log)
        assert status == 0, output
        self.tell("end", "left alone", before, "")


def compare(save_dir: Path, unbroken: Path) -> list[tuple[str, bool, str]]:
    """What is compared, whether it is equal bit by bit, and lines of the log that a kill has swallowed.

    fairseq saves at the end of an epoch, and then writes the line of that epoch.
    """
    one, other = result(save_dir), result(unbroken)
    rows = [(part, equal(one[part], other[part]), "") for part in other]
    for tag in ("train_inner", "train", "valid"):
        here, there = losses(save_dir, tag), losses(unbroken, tag)
        lost = there.keys() - here.keys()
        same = here == {update: there[update] for update in there if update not in lost}
        rows.append(
            (f"losses ({tag})", same and (tag == "train" or not lost), f"{len(lost)} of {len(there)}")
        )
    return rows


def table(*columns: str, rows: list[tuple]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=22, help="kills, and two full disks")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), args.events, args.seed)
        mounted = mount_small_disk(Path(name, "disk"), kilobytes=4000)
        try:
            unbroken = soak.unbroken()
            for number in range(1, args.events + 1):
                if number == soak.cut:
                    soak.cut_file(number)
                if number in soak.full:
                    soak.fill_disk(number, mounted)
                else:
                    soak.kill(number)
            soak.end()
            same = compare(soak.save_dir, unbroken)
        finally:
            if mounted:
                subprocess.run(["umount", str(Path(name, "disk"))], check=True)
    print(table("event", "what", "update before", "update after", "left or said", rows=soak.rows))
    print()
    print(table("at the end", "equal bit by bit", "lines lost", rows=same))
    if not all(equal for _, equal, _ in same):
        sys.exit("soak: the runs differ")


if __name__ == "__main__":
    main()
