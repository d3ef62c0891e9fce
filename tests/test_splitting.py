"""Documents for training and for validation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupe_fairseq.splitting import SPLITS, draw, move_document, move_lines, write_documents


def lines_of(text: list[list[str]]) -> list[str]:
    return [line for document in text for line in [*document, ""]]


def read(folder: Path) -> list[list[list[str]]]:
    """Documents of train.txt and of valid.txt."""
    texts = [(folder / f"{split}.txt").read_text(encoding="utf-8") for split in SPLITS]
    assert all(text.endswith("\n") for text in texts if text)
    return [[part.splitlines() for part in text.split("\n\n")] if text else [] for text in texts]


def test_draw_takes_one_in_so_many() -> None:
    drawn = [number for number in range(20_000) if draw(number, seed=1, valid_every=10)]
    assert abs(len(drawn) - 2000) < 5 * math.sqrt(20_000 * 0.1 * 0.9)  # five standard deviations
    assert not any(draw(0, seed, valid_every=2) for seed in range(20)), "the first document trains"
    assert drawn != [number for number in range(20_000) if draw(number, seed=2, valid_every=10)]


@given(st.lists(st.sampled_from(["", "a", "b é"])), st.sets(st.integers(0, 9)))
def test_documents_go_whole_to_one_side(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], validating: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    counts = write_documents(lines, folder, validating.__contains__)
    text = [part.split("\n") for part in "\n".join(lines).split("\n\n")]
    text = [kept for document in text if (kept := [line for line in document if line])]
    sides = [[document for i, document in enumerate(text) if (i in validating) == side] for side in (0, 1)]
    assert read(folder) == sides
    assert counts == [len(side) for side in sides]


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [((30, 1, 9, 60), 2), ((1, 1), 0), ((5, 90, 5), 0), ((300, 100), 1)],  # one in ten lines: 10, 0.2, 10, 40
)
def test_a_document_of_fitting_length_moves(tmp_path: Path, lengths: tuple[int, ...], chosen: int) -> None:
    text = [[f"line {i} of document {number}" for i in range(n)] for number, n in enumerate(lengths)]
    assert write_documents(lines_of(text), tmp_path, lambda _: False) == [len(text), 0]
    assert move_document(tmp_path, valid_every=10) == [len(text) - 1, 1]
    assert read(tmp_path) == [text[:chosen] + text[chosen + 1 :], [text[chosen]]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt", "valid.txt"]


@pytest.mark.parametrize(("lines", "every", "moved"), [(2, 200, 1), (20, 10, 2), (29, 10, 2)])
def test_of_one_document_the_last_lines_move(tmp_path: Path, lines: int, every: int, moved: int) -> None:
    document = [f"line {i}" for i in range(lines)]
    write_documents(document, tmp_path, lambda _: False)
    assert move_lines(tmp_path, lines, every) == moved
    assert read(tmp_path) == [[document[:-moved]], [document[-moved:]]]


def test_one_line_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one line is left"):
        move_lines(tmp_path, 1, 200)
