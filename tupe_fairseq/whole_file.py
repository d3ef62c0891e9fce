"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write; it takes the place of `path` if all goes well, or vanishes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to fill; it gets that name if all goes well, or vanishes.

    Raises:
        ValueError: `path` is there already, and no empty folder.
    """
    path = path.resolve()
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(f"{path} exists; name a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
        fresh = Path(work, "new")
        fresh.mkdir()
        yield fresh
        fresh.rename(path)
