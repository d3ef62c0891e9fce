"""The leaderboard's zip file: all that must be in it, and every fault of a file."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import pytest

from tupe_fairseq.glue_submission import add_submission_arguments, leaderboard_files, run_submission

# gluebenchmark.com, FAQ: the names; rows of the test sets as published
ROWS = {
    "CoLA.tsv": (1063, "1"),
    "SST-2.tsv": (1821, "0"),
    "MRPC.tsv": (1725, "1"),
    "STS-B.tsv": (1379, "2.500"),
    "QQP.tsv": (390965, "0"),
    "MNLI-m.tsv": (9796, "neutral"),
    "MNLI-mm.tsv": (9847, "contradiction"),
    "QNLI.tsv": (5463, "not_entailment"),
    "RTE.tsv": (3000, "entailment"),
    "WNLI.tsv": (146, "0"),
    "AX.tsv": (1104, "entailment"),
}


def write(path: Path, rows: int, prediction: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("index\tprediction\n" + "".join(f"{i}\t{prediction}\n" for i in range(rows)))


def submit(*arguments: object) -> None:
    parser = argparse.ArgumentParser()
    add_submission_arguments(parser)
    run_submission(parser.parse_args([str(argument) for argument in arguments]))


def test_the_files_of_the_leaderboard() -> None:
    assert {name: rows for name, (_, rows) in leaderboard_files().items()} == {
        k: v[0] for k, v in ROWS.items()
    }


def test_all_files(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (rows, prediction) in ROWS.items():
        write(tmp_path / "out" / name, rows, prediction)
    (tmp_path / "out/RTE.valid.tsv").write_text("dev rows")
    monkeypatch.chdir(tmp_path)
    submit("out")
    with zipfile.ZipFile("submission.zip") as file:
        assert sorted(file.namelist()) == sorted(ROWS)
        assert all(file.read(name) == (tmp_path / "out" / name).read_bytes() for name in ROWS)
    said = capsys.readouterr().out
    assert "left out, not of the leaderboard: RTE.valid.tsv\n" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "submission.zip"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    for name in ROWS.keys() - {"QQP.tsv", "AX.tsv"}:
        write(tmp_path / name, *ROWS[name])
    with pytest.raises(SystemExit) as end:
        submit(tmp_path, "-o", tmp_path / "my.zip")
    assert end.value.code == (
        f"glue submission: warning: {tmp_path}/my.zip was written, but without QQP.tsv, AX.tsv; "
        "the leaderboard asks for all 11 files"
    )
    with zipfile.ZipFile(tmp_path / "my.zip") as file:
        assert set(file.namelist()) == ROWS.keys() - {"QQP.tsv", "AX.tsv"}


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no file of the leaderboard: CoLA.tsv, "):
        submit(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("index\tprediction", "id\tlabel", r"line 1: 'id\tlabel' in place of 'index\tprediction'"),
        ("index\tprediction\n", "", r"line 1: '0\t0' in place of"),
        ("5\t0", "5\t2", "line 7: label '2' is none of 0, 1"),
        ("5\t0", "5\tentailment", "line 7: label 'entailment' is none of 0, 1"),
        ("5\t0", "5\t", "line 7: the label is missing"),
        ("5\t0", "5", "line 7: 1 columns in place of 2"),
        ("5\t0", "5\t0\t0", "line 7: 3 columns in place of 2"),
        ("5\t0\n", "5\t0\r\n", r"line 7: label '0\r' is none of 0, 1"),
        ("5\t0\n", "", "line 7: index '6' in place of 5"),
        ("5\t0\n", "\n", "line 7: 1 columns in place of 2"),
        ("5\t0", "05\t0", "line 7: index '05' in place of 5"),
        ("145\t0\n", "", "ends with line 146; there must be 146 rows and a header"),
        ("145\t0\n", "145\t0\n146\t0\n", "line 148: a line too many; there are 146 rows and a header"),
        ("145\t0\n", "145\t0\n\n", "line 148: a line too many"),
        ("5\t0", "5\t\udcff", "is not UTF-8"),
    ],
)
def test_faults_are_refused(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    write(tmp_path / "WNLI.tsv", 146, "0")
    text = (tmp_path / "WNLI.tsv").read_text()
    assert old in text
    changed = text.replace(f"\n{old}", f"\n{new}", 1) if f"\n{old}" in text else text.replace(old, new, 1)
    (tmp_path / "WNLI.tsv").write_bytes(changed.encode(errors="surrogateescape"))
    write(tmp_path / "RTE.tsv", 2999, "entailment")
    with pytest.raises(ValueError) as error:
        submit(tmp_path, "-o", tmp_path / "my.zip")
    assert sentence in str(error.value)
    assert f"{tmp_path}/WNLI.tsv" in str(error.value)
    assert f"{tmp_path}/RTE.tsv ends with line 3000" in str(error.value), "every file with a fault is named"
    assert not (tmp_path / "my.zip").exists()


@pytest.mark.parametrize("number", ["5.001", "-0.001", "nan", "inf", "many", ""])
def test_numbers_out_of_range(tmp_path: Path, number: str) -> None:
    write(tmp_path / "STS-B.tsv", 1379, "5.000")
    text = (tmp_path / "STS-B.tsv").read_text().replace("\n3\t5.000", f"\n3\t{number}")
    (tmp_path / "STS-B.tsv").write_text(text)
    with pytest.raises(ValueError, match=r"STS-B.tsv, line 5: .*label"):
        submit(tmp_path, "-o", tmp_path / "my.zip")


def test_the_end_of_the_last_line_may_be_missing(tmp_path: Path) -> None:
    write(tmp_path / "WNLI.tsv", 146, "1")
    (tmp_path / "WNLI.tsv").write_bytes((tmp_path / "WNLI.tsv").read_bytes()[:-1])
    with pytest.raises(SystemExit, match=r"was written, but without CoLA\.tsv"):
        submit(tmp_path, "-o", tmp_path / "my.zip")
