"""The zip file for GLUE's leaderboard: ``python -m tupe_fairseq.glue submission OUT [-o submission.zip]``.

What a file must be stands in the table: its rows, and the labels or the range of its numbers. Standard
library only.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

from .glue import TASKS
from .glue_rows import check_label
from .glue_task import GlueTask
from .whole_file import whole_file

HEADER = "index\tprediction"


def leaderboard_files() -> dict[str, tuple[GlueTask, int | None]]:
    """Name of every file that the leaderboard asks for, with its task and rows."""
    return {
        split.submission: (task, split.rows)
        for task in TASKS.values()
        for split in task.splits.values()
        if split.submission
    }


def check_file(path: Path, task: GlueTask, rows: int | None) -> None:
    """Refuses a file that the leaderboard would not take, or would score wrongly.

    Args:
        rows: how many there must be, if anybody knows.

    Raises:
        ValueError: the sentence names the file and the line.
    """
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error})") from None
    if lines[0] != HEADER:
        raise ValueError(f"{path}, line 1: {lines[0]!r} in place of {HEADER!r}")
    for number, line in enumerate(lines[1:], start=2):
        if rows is not None and number > rows + 1:
            raise ValueError(f"{path}, line {number}: a line too many; there are {rows:,} rows and a header")
        try:
            _check_line(line, number - 2, task)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if rows is not None and len(lines) < rows + 1:
        raise ValueError(f"{path} ends with line {len(lines)}; there must be {rows:,} rows and a header")


def _check_line(line: str, index: int, task: GlueTask) -> None:
    fields = line.split("\t")
    if len(fields) != 2:
        raise ValueError(f"{len(fields)} columns in place of 2")
    if fields[0] != str(index):
        raise ValueError(f"index {fields[0]!r} in place of {index}")
    check_label(fields[1], task)


def pack(folder: Path, archive: Path) -> tuple[list[str], list[str]]:
    """Checks the leaderboard's files in a folder and zips them; returns their names, and those missing.

    The archive is complete or absent, and holds no folders, as the leaderboard wants it.

    Raises:
        FileNotFoundError: the folder has no such file.
        ValueError: a file has a fault; the sentence names all that have one.
    """
    wanted = leaderboard_files()
    if archive.name in wanted:
        raise ValueError(f"{archive} has the name of a file of predictions; name the archive with -o")
    found = [name for name in wanted if (folder / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{folder} has no file of the leaderboard: {', '.join(wanted)}")
    faults = []
    for name in found:
        try:
            check_file(folder / name, *wanted[name])
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError(f"{archive} was not written: {'; '.join(faults)}")
    with whole_file(archive) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as file:
        for name in found:
            file.write(folder / name, name)
    return found, [name for name in wanted if name not in found]


def add_submission_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``glue submission``."""
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of predictions, RTE.tsv for example")
    parser.add_argument(
        *("-o", "--archive"),
        type=Path,
        default=Path("submission.zip"),
        help="the zip file to write (default: submission.zip)",
    )


def run_submission(args: argparse.Namespace) -> None:
    """Writes the archive; ends with status 1 where files are missing, though it was written.

    Raises:
        OSError, ValueError: as `pack`.
    """
    found, missing = pack(args.out, args.archive)
    others = sorted(path.name for path in args.out.iterdir() if path.name not in found and path.is_file())
    others = [name for name in others if (args.out / name).resolve() != args.archive.resolve()]
    if others:
        print(f"left out, not of the leaderboard: {', '.join(others)}")
    print(f"{args.archive}: {', '.join(found)}")
    if missing:
        sys.exit(
            f"glue submission: warning: {args.archive} was written, but without {', '.join(missing)}; "
            f"the leaderboard asks for all {len(found) + len(missing)} files"
        )
