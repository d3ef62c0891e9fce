"""Rows of ids on disk, in the format that fairseq memory-maps (`--dataset-impl mmap`).

Two files share a prefix (fairseq.data.indexed_dataset.MMapIndexedDataset reads them):

    PREFIX.bin   all ids, row after row, without gaps
    PREFIX.idx   "MMIDIDX\\0\\0" | version 1 (u64) | id type (u8) | rows N (u64)
                 | ids in each row (N x i32) | byte where each row begins in PREFIX.bin (N x i64)

Numbers are little-endian. Rows stream through: memory does not grow with their number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

_HEADER = struct.Struct("<9sQBQ")
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_CODES = {np.dtype("<u2"): 8, np.dtype("<u4"): 9}  # fairseq's _code_to_dtype
_TYPES = {
    1: "u1",
    2: "i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    8: "<u2",
    9: "<u4",
    10: "<u8",
}  # fairseq reads them too
_UINT16_BELOW = 65_500  # fairseq's best_fitting_int_dtype
_CHUNK = 1 << 20  # row sizes held in memory at once


def id_type(vocabulary_size: int) -> np.dtype:
    """The type of ids on disk: 2 bytes, or 4 for a large vocabulary."""
    return np.dtype("<u2" if vocabulary_size < _UINT16_BELOW else "<u4")


def check(prefix: str | Path, symbols: int) -> None:
    """Refuses files that fairseq would fail on, or read as another text. Reads all of both, as fairseq does.

    symbols: ids lie in [0, symbols).

    Raises OSError, and ValueError in a sentence.
    """
    index, file = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    kind, rows = _read_header(index)
    sizes = np.memmap(index, "<i4", "r", _HEADER.size, rows)
    begins = np.memmap(index, "<i8", "r", _HEADER.size + sizes.nbytes, rows)
    begin = 0  # bytes
    for first in range(0, rows, _CHUNK):
        chunk = slice(first, first + _CHUNK)
        ends = begin + np.cumsum(sizes[chunk], dtype=np.int64) * kind.itemsize
        if sizes[chunk].min() < 0 or (begins[chunk] != ends - sizes[chunk] * kind.itemsize).any():
            raise ValueError(f"{index} is damaged: its rows do not follow each other; prepare the data again")
        begin = int(ends[-1])
    if file.stat().st_size != begin:
        raise ValueError(
            f"{file} has {file.stat().st_size:,} bytes, and {index.name} tells of {begin:,}; "
            "prepare the data again"
        )
    ids = np.memmap(file, kind, "r") if begin else np.zeros(0, kind)
    for first in range(0, ids.size, _CHUNK):
        least, most = (int(end(ids[first : first + _CHUNK])) for end in (np.min, np.max))
        if least < 0 or most >= symbols:
            raise ValueError(
                f"{file} holds the id {least if least < 0 else most}, and its vocabulary has {symbols:,} "
                "symbols: it is damaged, or was made with another; prepare the data again"
            )


def _read_header(index: Path) -> tuple[np.dtype, int]:
    """The type of the ids and the number of rows, of which the file has just the size; raises ValueError."""
    with index.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) == _HEADER.size:
        magic, version, code, rows = _HEADER.unpack(header)
        if (magic, version) == (_MAGIC, _VERSION) and code in _TYPES:
            if rows and index.stat().st_size == _HEADER.size + 12 * rows:
                return np.dtype(_TYPES[code]), rows
            raise ValueError(f"{index} has no rows, or was cut off; prepare the data again")
    raise ValueError(
        f"{index} is no index of rows (in the format of fairseq-preprocess --dataset-impl mmap); prepare the "
        "data again"
    )


class TokenFile:
    """Writes PREFIX.bin and PREFIX.idx row by row, or many rows at a time.

        with TokenFile("bin/train", vocabulary_size) as file:
            file.add(ids)

    Until the block ends without an error, nothing new stands under the final names; after an error the
    temporary files are gone. A file without any id can be written, but fairseq cannot open it.
    """

    def __init__(self, prefix: str | Path, vocabulary_size: int) -> None:
        """vocabulary_size: ids lie in [0, vocabulary_size); it decides between 2 and 4 bytes an id."""
        self._prefix = str(prefix)
        self._limit = vocabulary_size
        self._type = id_type(vocabulary_size)
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
        self.add_rows(row, np.array([row.size]))

    def add_rows(self, ids: np.ndarray, sizes: np.ndarray) -> None:
        """Adds rows that lie in `ids` one after the other, so many ids in each; raises ValueError for an id
        outside the vocabulary."""
        if ids.size and not (ids.min() >= 0 and ids.max() < self._limit):
            raise ValueError(f"ids lie in [0, {self._limit}), these rows hold {ids.min()} to {ids.max()}")
        if ids.size != sizes.sum():
            raise ValueError(f"rows of {sizes.sum()} ids are to be added, but there are {ids.size} ids")
        self._ids.write(ids.astype(self._type).tobytes())
        self._sizes.write(sizes.astype("<i4").tobytes())
        self._rows += sizes.size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._open.close()
            if kind is None:
                self._write_index()
                _publish(self._prefix)
        finally:
            _clean_up(self._prefix)

    def _write_index(self) -> None:
        """Header, row sizes, then where rows begin: a running sum of the sizes."""
        with _temporary(self._prefix, "idx").open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, _CODES[self._type], self._rows))
            for sizes in self._size_chunks():
                file.write(sizes.tobytes())
            begin = 0  # bytes
            for sizes in self._size_chunks():
                ends = begin + np.cumsum(sizes, dtype="<i8") * self._type.itemsize
                file.write((ends - sizes * self._type.itemsize).tobytes())
                begin = int(ends[-1])

    def _size_chunks(self) -> Iterator[np.ndarray]:
        with _temporary(self._prefix, "sizes").open("rb") as file:
            for done in range(0, self._rows, _CHUNK):
                yield np.fromfile(file, "<i4", min(_CHUNK, self._rows - done))


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
