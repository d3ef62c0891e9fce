"""Rows of ids on disk, in the format that fairseq memory-maps (`--dataset-impl mmap`).

Two files share a prefix (fairseq.data.indexed_dataset.MMapIndexedDataset reads them):

    PREFIX.bin   all ids, row after row, without gaps
    PREFIX.idx   "MMIDIDX\\0\\0" | version 1 (u64) | id type (u8) | rows N (u64)
                 | ids in each row (N x i32) | byte where each row begins in PREFIX.bin (N x i64)

Numbers are little-endian. Rows stream through: memory does not grow with their number.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import numpy as np

_HEADER = struct.Struct("<9sQBQ")
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_TYPES: dict[int, np.dtype] = {8: np.dtype("<u2"), 9: np.dtype("<u4")}  # as fairseq's _code_to_dtype
_UINT16_BELOW = 65_500  # fairseq's best_fitting_int_dtype
_CHUNK = 1 << 20  # row sizes held in memory at once


class _Sizes(NamedTuple):
    """Row sizes (i32) that lie in `path` from byte `offset` on."""

    path: Path
    offset: int
    rows: int

    def chunks(self) -> Iterator[np.ndarray]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for done in range(0, self.rows, _CHUNK):
                yield np.fromfile(file, "<i4", min(_CHUNK, self.rows - done))


class TokenFile:
    """Writes PREFIX.bin and PREFIX.idx row by row.

        with TokenFile("bin/train", vocabulary_size) as file:
            file.add(ids)

    Until the block ends without an error, nothing new stands under the final names; after an error the
    temporary files are gone. A file without any id can be written, but fairseq cannot open it.
    """

    def __init__(self, prefix: str | Path, vocabulary_size: int) -> None:
        """vocabulary_size: ids lie in [0, vocabulary_size); it decides between 2 and 4 bytes an id."""
        self._prefix = str(prefix)
        self._limit = vocabulary_size
        self._code = 8 if vocabulary_size < _UINT16_BELOW else 9
        self._rows = 0

    def __enter__(self) -> TokenFile:
        with ExitStack() as stack:
            self._ids: IO[bytes] = stack.enter_context(_temporary(self._prefix, "bin").open("wb"))
            self._sizes: IO[bytes] = stack.enter_context(_temporary(self._prefix, "sizes").open("wb"))
            self._open = stack.pop_all()
        return self

    def add(self, ids: Sequence[int] | np.ndarray) -> None:
        """Adds one row; raises ValueError for an id outside the vocabulary."""
        row = np.asarray(ids, dtype=np.int64)
        if row.size and not (row.min() >= 0 and row.max() < self._limit):
            raise ValueError(f"ids lie in [0, {self._limit}), this row holds {row.min()} to {row.max()}")
        self._ids.write(row.astype(_TYPES[self._code]).tobytes())
        self._sizes.write(struct.pack("<i", row.size))
        self._rows += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._open.close()
            if kind is None:
                sizes = _Sizes(_temporary(self._prefix, "sizes"), 0, self._rows)
                _write_index(self._prefix, self._code, [sizes])
                _publish(self._prefix)
        finally:
            _clean_up(self._prefix)


def concatenate(parts: Sequence[str | Path], prefix: str | Path) -> None:
    """Writes the rows of all parts (prefixes), in order, to `prefix`: the bytes of a single TokenFile.

    Raises ValueError for parts that are no whole token files or that differ in their id type.
    """
    target = str(prefix)
    headers = [_read_header(Path(f"{part}.idx")) for part in parts]
    codes = {code for code, _ in headers}
    if len(codes) != 1:
        raise ValueError(f"the parts of {target} have {len(codes)} id types; give parts of one vocabulary")
    try:
        with _temporary(target, "bin").open("wb") as ids:
            for part in parts:
                with Path(f"{part}.bin").open("rb") as source:
                    shutil.copyfileobj(source, ids, 1 << 20)
        sizes = [_Sizes(Path(f"{p}.idx"), _HEADER.size, rows) for p, (_, rows) in zip(parts, headers)]
        if _write_index(target, codes.pop(), sizes) != _temporary(target, "bin").stat().st_size:
            raise ValueError(f"the parts of {target} do not hold the ids that their indexes list")
        _publish(target)
    finally:
        _clean_up(target)


def _read_header(path: Path) -> tuple[int, int]:
    """Id type and number of rows of a .idx file."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) == _HEADER.size:
        magic, version, code, rows = _HEADER.unpack(header)
        if (magic, version) == (_MAGIC, _VERSION) and code in _TYPES:
            return code, rows
    raise ValueError(f"{path} is no index of a token file")


def _write_index(prefix: str, code: int, parts: Sequence[_Sizes]) -> int:
    """Writes the temporary .idx: header, row sizes, then where rows begin, a running sum of the sizes.
    Returns where the last row ends: the bytes of the .bin."""
    width = _TYPES[code].itemsize
    begin = 0  # bytes
    with _temporary(prefix, "idx").open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, _VERSION, code, sum(part.rows for part in parts)))
        for sizes in _chunks(parts):
            file.write(sizes.tobytes())
        for sizes in _chunks(parts):
            ends = begin + np.cumsum(sizes, dtype="<i8") * width
            file.write((ends - sizes * width).tobytes())
            begin = int(ends[-1])
    return begin


def _chunks(parts: Sequence[_Sizes]) -> Iterator[np.ndarray]:
    for part in parts:
        yield from part.chunks()


def _temporary(prefix: str, suffix: str) -> Path:
    """Beside the final file, so that a rename moves no bytes."""
    return Path(f"{prefix}.{suffix}.partial")


def _publish(prefix: str) -> None:
    """An old index goes first: at no time does an index stand beside ids that are not its own."""
    Path(f"{prefix}.idx").unlink(missing_ok=True)
    for suffix in ("bin", "idx"):
        _temporary(prefix, suffix).replace(f"{prefix}.{suffix}")


def _clean_up(prefix: str) -> None:
    for suffix in ("bin", "sizes", "idx"):
        _temporary(prefix, suffix).unlink(missing_ok=True)
