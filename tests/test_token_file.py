"""Token files, read and written by fairseq itself."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype, make_builder
from hypothesis import given
from hypothesis import strategies as st

from tupe_fairseq import token_file
from tupe_fairseq.token_file import TokenFile, id_type

SIZES = (100, 65_499, 65_500, 100_000)  # vocabularies on both sides of fairseq's change of type
ROWS = [[4, 5, 2], [2], [], [99] * 1000, [0, 1, 2, 3]]


def write(prefix: Path, rows: list, size: int = 100) -> None:
    with TokenFile(prefix, size) as file:
        for row in rows:
            file.add(row)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_file, "_CHUNK", 3)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_those_of_fairseqs_writer(tmp_path: Path, size: int) -> None:
    rows = [*ROWS, [size - 1, 0]]
    builder = make_builder(str(tmp_path / "theirs.bin"), "mmap", vocab_size=size)
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.long))
    builder.finalize(str(tmp_path / "theirs.idx"))
    write(tmp_path / "ours", rows, size)
    assert (tmp_path / "ours.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()
    assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "theirs.idx").read_bytes()


@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=10),
    first=st.lists(st.integers(0, 99), min_size=1),
)
def test_fairseq_reads_the_rows(tmp_path_factory: pytest.TempPathFactory, rows: list, first: list) -> None:
    prefix = tmp_path_factory.mktemp("rows") / "rows"
    write(prefix, [first, *rows])
    dataset = MMapIndexedDataset(str(prefix))
    assert [dataset[i].tolist() for i in range(len(dataset))] == [first, *rows]
    assert dataset.sizes.tolist() == [len(row) for row in [first, *rows]]


@pytest.mark.parametrize("size", SIZES)
def test_type_is_fairseqs(tmp_path: Path, size: int) -> None:
    write(tmp_path / "rows", ROWS, size)
    assert MMapIndexedDataset(str(tmp_path / "rows"))._index.dtype == best_fitting_int_dtype(size)
    assert id_type(size) == best_fitting_int_dtype(size)


def test_numpy_rows(tmp_path: Path) -> None:
    write(tmp_path / "lists", ROWS)
    write(tmp_path / "arrays", [np.array(row, dtype=np.int32) for row in ROWS])
    assert (tmp_path / "lists.bin").read_bytes() == (tmp_path / "arrays.bin").read_bytes()


@pytest.mark.parametrize("cuts", [(0, 5), (1, 3), (2, 2), (4, 5)])
@pytest.mark.parametrize("kind", [np.uint16, np.int64])
def test_rows_together_are_rows_one_by_one(tmp_path: Path, cuts: tuple[int, int], kind: type) -> None:
    write(tmp_path / "whole", ROWS)
    with TokenFile(tmp_path / "together", 100) as file:
        for rows in (ROWS[: cuts[0]], ROWS[cuts[0] : cuts[1]], ROWS[cuts[1] :]):
            file.add_rows(
                np.array([i for row in rows for i in row], kind), np.array([len(row) for row in rows], kind)
            )
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"together.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()


def test_rows_that_are_not_as_long_as_said(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"rows of 4 ids .* there are 3"),
        TokenFile(tmp_path / "rows", 9) as file,
    ):
        file.add_rows(np.array([1, 2, 3]), np.array([2, 2]))
    assert not contents(tmp_path)


@pytest.mark.parametrize("row", [[-1], [100], [4, 2**40]])
def test_id_outside_the_vocabulary(tmp_path: Path, row: list[int]) -> None:
    with pytest.raises(ValueError, match=r"ids lie in \[0, 100\)"):
        write(tmp_path / "rows", [*ROWS, row])
    assert not contents(tmp_path)


def test_nothing_under_the_final_names_before_the_end(tmp_path: Path) -> None:
    with TokenFile(tmp_path / "rows", 100) as file:
        file.add([1, 2, 3])
        assert not {"rows.bin", "rows.idx"} & set(contents(tmp_path))
    assert sorted(contents(tmp_path)) == ["rows.bin", "rows.idx"]


def test_an_error_leaves_older_files_as_they_were(tmp_path: Path) -> None:
    write(tmp_path / "rows", ROWS)
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt), TokenFile(tmp_path / "rows", 100) as file:
        file.add([1, 2, 3])
        raise KeyboardInterrupt
    assert contents(tmp_path) == before


def test_memory_does_not_grow_with_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_file, "_CHUNK", 1000)

    def peak(rows: int) -> int:
        tracemalloc.start()
        with TokenFile(tmp_path / "rows", 100) as file:
            for _ in range(rows):
                file.add([4, 2])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(2_000)
    assert peak(40_000) < peak(2_000) + 40_000, "less than one byte a row"
