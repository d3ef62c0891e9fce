"""GLUE's files, their preparation, and the flags that follow from a task."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import tiny_glue
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset

from tupe_fairseq import glue_flags
from tupe_fairseq.glue import TASKS, PreparedTask
from tupe_fairseq.glue_data import choose, main, prepare
from tupe_fairseq.glue_rows import Row, find_file, read_rows
from tupe_fairseq.glue_task import labelled
from tupe_fairseq.sentence_criterion import METRICS
from tupe_fairseq.vocabulary import EOS, UNK, Vocabulary, dictionary_fingerprint

COLA, RTE, STSB = TASKS["CoLA"], TASKS["RTE"], TASKS["STS-B"]
# Rows of train, dev and test in the files of gluebenchmark.com; those of COMPLETE are in the real data.
PUBLISHED = {
    "QQP": (363846, 40430, 390965),
    "MNLI": (392702, 9815, 9832, 9796, 9847),
    "QNLI": (104743, 5463, 5463),
    "CoLA": (8551, 1043, 1063),
    "SST-2": (67349, 872, 1821),
    "MRPC": (3668, 408, 1725),
    "STS-B": (5749, 1500, 1379),
    "RTE": (2490, 277, 3000),
    "WNLI": (635, 71, 146),
    "AX": (1104,),
}
COMPLETE = ("CoLA", "SST-2", "MRPC", "STS-B", "RTE", "WNLI")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_glue.make_corpus(tmp_path_factory.mktemp("corpus") / "corpus")


@pytest.fixture(scope="module")
def real(shared_data: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE_BIN of the real files."""
    out = tmp_path_factory.mktemp("real")
    for name in ("CoLA", "RTE", "STS-B", "MRPC", "WNLI", "AX"):
        prepare(TASKS[name], shared_data / "glue", corpus, out)
    return out


def rows(folder: Path, split: str = "valid", task: str = "RTE") -> list[Row]:
    path = find_file(folder, TASKS[task], split)
    assert path is not None
    return list(read_rows(path, TASKS[task], split))


def write(folder: Path, content: str | bytes, name: str = "RTE/dev.tsv") -> Path:
    """A GLUE folder with one file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


# Reading


@pytest.mark.parametrize("name", COMPLETE)
def test_rows_of_real_files(shared_data: Path, name: str) -> None:
    found = [len(rows(shared_data / "glue", split, name)) for split in ("train", "valid", "test")]
    assert tuple(found) == PUBLISHED[name]


def test_published_rows() -> None:
    rows = {name: tuple(split.rows for split in task.splits.values()) for name, task in TASKS.items()}
    assert rows == PUBLISHED
    assert {split: row.file for split, row in TASKS["MNLI"].splits.items()} == {
        **{"train": "train.tsv", "valid": "dev_matched.tsv", "valid1": "dev_mismatched.tsv"},
        **{"test": "test_matched.tsv", "test1": "test_mismatched.tsv"},
    }


def test_columns_of_real_files(shared_data: Path) -> None:
    folder = shared_data / "glue"
    assert rows(folder, "valid", "CoLA")[0] == (("The sailors rode the breeze clear of the rocks.",), "1")
    assert rows(folder, "test", "CoLA")[0] == (("Bill whistled past the house.",), None)
    no_weapons = "No Weapons of Mass Destruction Found in Iraq Yet."
    assert rows(folder, "train")[0] == (
        (no_weapons, "Weapons of Mass Destruction Found in Iraq."),
        "not_entailment",
    )
    assert rows(folder, "train", "STS-B")[0] == (
        ("A plane is taking off.", "An air plane is taking off."),
        "5.000",
    )


def test_quotes_mean_nothing(tmp_path: Path) -> None:
    write(tmp_path, 'index\tsentence1\tsentence2\tlabel\n0\t"A\tB "" \'c\tentailment\n1\t"\t"\tentailment\n')
    assert [row.texts for row in rows(tmp_path)] == [('"A', 'B "" \'c'), ('"', '"')]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    # the byte-order mark is no part of the first name (as in MRPC)
    write(tmp_path, "\ufefflabel\tsentence2\textra\tsentence1\nentailment\tb\tx\ta\n")
    assert rows(tmp_path) == [(("a", "b"), "entailment")]


def test_line_ends_and_byte_order_mark(tmp_path: Path, shared_data: Path) -> None:
    plain = (shared_data / "glue/RTE/dev.tsv").read_bytes()
    windows = (shared_data / "ugly/DERIVED_rte_dev_crlf.tsv").read_bytes()
    assert windows.startswith(b"\xef\xbb\xbf") and windows.count(b"\r\n") == 278
    expected = rows(write(tmp_path / "plain", plain))
    assert len(expected) == 277
    assert rows(write(tmp_path / "windows", windows)) == expected
    assert rows(write(tmp_path / "no end", plain.rstrip(b"\n"))) == expected


def test_only_line_feeds_separate_rows(tmp_path: Path) -> None:
    text = "a\x0cb\x85c\u2028d\re"  # str.splitlines would make five lines of it
    write(tmp_path, f"index\tsentence1\tsentence2\tlabel\n0\t{text}\tB\tentailment\n")
    assert rows(tmp_path) == [((text, "B"), "entailment")]


HEADER = b"index\tsentence1\tsentence2\tlabel\n"
BROKEN = {
    6: "3 columns in place of 4",
    10: "5 columns in place of 4",
    13: "the line is empty",
    16: r"label '\w+' is none of entailment, not_entailment",
}


@pytest.mark.parametrize("line", BROKEN)
def test_faults_are_named_by_line(tmp_path: Path, shared_data: Path, line: int) -> None:
    lines = (shared_data / "ugly/DERIVED_rte_dev_broken.tsv").read_text().split("\n")
    for other in BROKEN.keys() - {line}:
        lines[other - 1] = lines[1]
    write(tmp_path, "\n".join(lines))
    with pytest.raises(ValueError, match=rf"RTE/dev\.tsv, line {line}: {BROKEN[line]}$"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"dev\.tsv is empty"),
        (b"index\tsentence1\tlabel\n", "line 1: the header has no column 'sentence2' but 'index', "),
        (b"index\tsentence1\tsentence2\tlabel\tlabel\n", "line 1: the header has the column 'label' twice"),
        (HEADER + b"0\ta\tb\t\n", "line 2: the label is missing"),
        (HEADER + b"0\ta\tb\tentailment \n", "line 2: label 'entailment ' is none of"),
        (HEADER + b"0\t\xe9\tb\tentailment\n", r"dev\.tsv, line 2: not UTF-8"),
    ],
)
def test_other_faults(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows(write(tmp_path, content))


@pytest.mark.parametrize("score", ["-0.1", "5.01", "nan", "inf", "high", "0_1", "٣", " 3.0"])
def test_scores_are_numbers_from_0_to_5(tmp_path: Path, score: str) -> None:
    tiny_glue.write_tsv(tmp_path / "STS-B/dev.tsv", tiny_glue.stsb_rows(["0.0", "5.000", score]))
    with pytest.raises(ValueError, match=rf"line 4: label '{score}' is no number from 0 to 5"):
        rows(tmp_path, task="STS-B")


def test_rows_of_real_pairs(shared_data: Path) -> None:
    """A row of each remaining task, as it stands in the file."""
    folder = shared_data / "glue"
    assert rows(folder, "valid", "SST-2")[0] == (("it 's a charming and often affecting journey . ",), "1")
    first, second = rows(folder, "train", "MRPC")[0].texts
    assert first.startswith("Amrozi accused his brother") and second.startswith("Referring to him as only")
    assert rows(folder, "train", "QQP")[0] == (
        ("Can I develope mobile apps with c++?", "How can I develop mobile apps with C++?"),
        "1",
    )
    assert rows(folder, "valid", "QNLI")[0].label == "entailment"
    assert rows(folder, "valid", "WNLI")[0][0][1] == "The hair has to be cleaned."
    cat = ("The cat sat on the mat.", "The cat did not sit on the mat.")
    assert rows(folder, "test", "AX")[0] == (cat, None)
    mnli = rows(folder, "train", "MNLI")
    assert len(mnli) == 480
    assert {row.label for row in mnli} == set(TASKS["MNLI"].labels)
    assert [len(rows(folder, "train", name)) for name in ("QQP", "QNLI")] == [320, 320]


@pytest.mark.parametrize("name", TASKS)
def test_table(name: str) -> None:
    task = TASKS[name]
    for split, row in task.splits.items():
        assert (row.submission is None) == labelled(split)
    assert set(task.metrics) <= set(METRICS)
    assert task.name == name and len({*task.labels}) == len(task.labels) and len(task.inputs) in (1, 2)
    if task.model is None:
        assert {"train", "valid", "test"} <= task.splits.keys() and task.metrics and task.epochs
    else:
        assert task.labels == TASKS[task.model].labels and list(task.splits) == ["test"]


def test_epochs_are_the_papers() -> None:
    assert {name for name, task in TASKS.items() if task.epochs == 5} == {"MNLI", "QQP", "QNLI"}
    assert {task.epochs for task in TASKS.values()} == {10, 5, 0}


def test_files_of_the_leaderboard() -> None:
    names = [row.submission for task in TASKS.values() for row in task.splits.values() if row.submission]
    assert sorted(names) == [
        *("AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv", "RTE.tsv"),
        *("SST-2.tsv", "STS-B.tsv", "WNLI.tsv"),
    ]


def test_which_file(tmp_path: Path) -> None:
    write(tmp_path, "", "RTE/train_sample.tsv")
    assert find_file(tmp_path, RTE, "train") == tmp_path / "RTE/train_sample.tsv"
    write(tmp_path, "", "RTE/train.tsv")
    assert find_file(tmp_path, RTE, "train") == tmp_path / "RTE/train.tsv"
    assert find_file(tmp_path, RTE, "valid") is None
    for number in "12":
        write(tmp_path, "", f"MRPC/train_sample{number}.tsv")
    assert find_file(tmp_path, TASKS["MRPC"], "train") is None


# Preparing


@pytest.mark.parametrize("name", sorted({*COMPLETE} - {"SST-2"}))
def test_prepared_files_agree(real: Path, name: str) -> None:
    task = TASKS[name]
    prepared = PreparedTask.load(real / name)
    assert tuple(prepared.rows.values()) == PUBLISHED[name]
    assert prepared.task == task
    for split, count in zip(("train", "valid", "test"), PUBLISHED[name]):
        for i in range(len(task.inputs)):
            assert len(MMapIndexedDataset(str(real / name / f"input{i}" / split))) == count
        labels = real / name / "label" / f"{split}.label"
        if split == "test":
            assert not labels.exists()
        else:
            assert len(labels.read_text().splitlines()) == count
    assert (real / name / "input1").exists() == (len(task.inputs) == 2)


def test_prepared_text(real: Path, corpus: Path, shared_data: Path) -> None:
    vocabulary = Vocabulary(corpus)
    ids = [MMapIndexedDataset(str(real / "RTE" / f"input{i}" / "valid")) for i in (0, 1)]
    known = 0
    for number, row in enumerate(rows(shared_data / "glue")):
        for dataset, text in zip(ids, row.texts):
            stored = dataset[number].tolist()
            assert stored[-1] == EOS and EOS not in stored[:-1]
            if UNK not in stored:
                known += 1
                assert vocabulary.decode(stored) == " ".join(text.lower().split())
    assert known > 100


def test_vocabulary_is_copied(real: Path, corpus: Path) -> None:
    for name in ("dict.txt", "spm.model"):
        assert (real / "RTE" / name).read_bytes() == (corpus / name).read_bytes()
    assert PreparedTask.load(real / "RTE").vocabulary == Vocabulary(corpus).fingerprint


def test_report(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture) -> None:
    length = len(Vocabulary(corpus).encode("import"))
    long = " ".join(["import"] * 600)
    train = [["index", "sentence1", "sentence2", "label"], ["0", "import", "import", "entailment"]]
    dev = [*train, ["1", long, "\u4e00", "entailment"]]
    tiny_glue.write_task(tmp_path / "RTE", train, dev, train)
    prepare(RTE, tmp_path, corpus, tmp_path / "out")
    out = capsys.readouterr().out
    assert f"train: 1 rows of {2 * length + 4:.1f} tokens" in out  # <s> A </s> </s> B </s>
    assert "warning: train.tsv has 1 rows where GLUE's has 2,490" in out
    assert "valid: 2 rows" in out and ", 1 over 512; " in out
    marks = len(Vocabulary(corpus).encode("\u4e00"))  # one of them unknown
    assert f"{1 / (602 * length + marks):.3%} of the pieces unknown" in out


def test_text_cannot_become_special_symbols(tmp_path: Path, corpus: Path) -> None:
    text = "<s> a </s> <mask> <pad> <unk>"
    lines = [["index", "sentence1", "sentence2", "label"], ["0", text, text, "entailment"]]
    tiny_glue.write_task(tmp_path / "RTE", lines, lines, lines)
    prepare(RTE, tmp_path, corpus, tmp_path / "out", max_unknown=1)
    ids = MMapIndexedDataset(str(tmp_path / "out/RTE/input0/valid"))[0].tolist()
    assert ids[-1] == EOS
    assert all(UNK <= i < len(Vocabulary(corpus)) for i in ids[:-1])


def test_rows_in_another_script_are_refused(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [["index", "sentence1", "sentence2", "label"], ["0", "\u4e00", "\u4e00", "entailment"]]
    tiny_glue.write_task(tmp_path / "RTE", lines, lines, lines)
    with pytest.raises(ValueError, match=r"train\.tsv: 50\.0% of the pieces are unknown, over --max-unknown"):
        prepare(RTE, tmp_path, corpus, tmp_path / "out")  # a word mark and one unknown, of two pieces
    assert not list((tmp_path / "out").iterdir())
    prepare(RTE, tmp_path, corpus, tmp_path / "out", max_unknown=0.5)
    said = capsys.readouterr().out
    assert said.count("warning: 50.0% of the pieces are unknown: the vocabulary lacks characters") == 3


def test_a_failure_leaves_nothing_behind(tmp_path: Path, corpus: Path) -> None:
    good = tiny_glue.rte_rows(4)
    tiny_glue.write_task(tmp_path / "glue/RTE", good, [*good, ["4", "a", "b", "maybe"]], good)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"dev\.tsv, line 6: label 'maybe'"):
        prepare(RTE, tmp_path / "glue", corpus, out)
    assert list(out.iterdir()) == []


def test_again_replaces_and_a_failure_keeps_the_old(tmp_path: Path, corpus: Path) -> None:
    folder = tiny_glue.make_rte(tmp_path, corpus, valid=4)
    (folder / "stale").touch()
    tiny_glue.make_rte(tmp_path, corpus, valid=5)
    assert PreparedTask.load(folder).rows["valid"] == 5
    assert not (folder / "stale").exists()
    write(tmp_path / "glue", "index\n", "RTE/test.tsv")
    with pytest.raises(ValueError, match=r"test\.tsv"):
        prepare(RTE, tmp_path / "glue", corpus, tmp_path / "bin")
    assert PreparedTask.load(folder).rows["valid"] == 5
    assert [p.name for p in (tmp_path / "bin").iterdir()] == ["RTE"]


def test_splits_that_are_missing_are_said(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture
) -> None:
    glue = tmp_path / "glue"
    tiny_glue.write_tsv(glue / "RTE/train_native_sample.tsv", tiny_glue.rte_rows(4))
    prepare(RTE, glue, corpus, tmp_path / "bin")
    out = capsys.readouterr().out
    assert "warning: train_native_sample.tsv has 4 rows where GLUE's has 2,490" in out
    for split, name in (("valid", "dev"), ("test", "test")):
        assert f"warning: no {glue}/RTE/{name}.tsv, so there are no {split} rows" in out
    assert PreparedTask.load(tmp_path / "bin/RTE").rows == {"train": 4}
    with pytest.raises(ValueError, match=r"bin/RTE has no valid rows; GLUE_DIR lacked its dev.tsv"):
        glue_flags.flags("RTE", tmp_path / "bin", save(tmp_path / "c.pt", 301), ["--batch-size", "8"])
    (glue / "RTE/train_native_sample.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"glue/RTE has no file of RTE"):
        prepare(RTE, glue, corpus, tmp_path / "none")


def test_bad_rows_are_skipped_and_counted_if_asked(
    tmp_path: Path, corpus: Path, shared_data: Path, capsys: pytest.CaptureFixture
) -> None:
    glue = tmp_path / "glue"
    write(glue, (shared_data / "ugly/DERIVED_rte_dev_broken.tsv").read_bytes(), "RTE/dev.tsv")
    good = len((shared_data / "ugly/DERIVED_rte_dev_broken.tsv").read_text().splitlines()) - 1 - len(BROKEN)
    prepare(RTE, glue, corpus, tmp_path / "bin", on_bad_row="skip")
    first = rf"{glue}/RTE/dev.tsv, line 6: 3 columns in place of 4"
    assert f"warning: 4 bad rows of valid skipped, the first: {first}" in capsys.readouterr().out
    folder = tmp_path / "bin/RTE"
    counts = [len(MMapIndexedDataset(str(folder / f"input{i}/valid"))) for i in (0, 1)]
    assert counts == [good, good] == [PreparedTask.load(folder).rows["valid"]] * 2
    assert len((folder / "label/valid.label").read_text().splitlines()) == good
    # a test row must not vanish: a prediction would be missing
    write(glue, b"index\tsentence1\tsentence2\n0\ta\n", "RTE/test.tsv")
    with pytest.raises(ValueError, match=r"test\.tsv, line 2: 2 columns in place of 3"):
        prepare(RTE, glue, corpus, tmp_path / "bin", on_bad_row="skip")


def test_the_command_skips_bad_rows_if_told_so(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    tiny_glue.write_tsv(tmp_path / "glue/RTE/dev.tsv", [*tiny_glue.rte_rows(3), ["4", "a", "b", "maybe"]])
    given = ["", "-g", str(tmp_path / "glue"), "-c", str(corpus), "-o", str(tmp_path / "bin"), "RTE"]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit, match="line 5: label 'maybe' is none of"):
        main()
    monkeypatch.setattr("sys.argv", [*given, "--on-bad-row", "skip"])
    main()
    assert "1 bad rows of valid skipped" in capsys.readouterr().out


def test_more_rows_than_published_are_said(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [["index", "sentence1", "sentence2", "label"], *[["0", "a", "b", "0"]] * 72]
    tiny_glue.write_tsv(tmp_path / "WNLI/dev.tsv", rows)
    prepare(TASKS["WNLI"], tmp_path, corpus, tmp_path / "bin")
    assert "warning: dev.tsv has 72 rows where GLUE's has 71" in capsys.readouterr().out


def test_the_digest_is_of_every_text_and_label(tmp_path: Path, corpus: Path) -> None:
    digests = []
    for change in ("", "label", "text"):
        rows = tiny_glue.rte_rows(4)
        if change:
            rows[1][3 if change == "label" else 1] = "entailment" if change == "label" else "other"
        tiny_glue.write_task(tmp_path / "RTE", rows, tiny_glue.rte_rows(4), tiny_glue.rte_rows(4))
        for _ in range(2):
            prepare(RTE, tmp_path, corpus, tmp_path / "out")
            digests.append(PreparedTask.load(tmp_path / "out/RTE").digest)
    assert digests[::2] == digests[1::2] and len(set(digests)) == 3 and len(digests[0]) == 64


def test_malformed_rows_of_qqp_are_skipped(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture
) -> None:
    """In its training rows; anywhere else they are an error."""
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    text = f"{header}0\t1\t2\ta\tb\t1\n1\t3\t4\tbroken\n2\t5\t6\tc\td\t0\n"
    write(tmp_path, text, "QQP/train.tsv")
    prepare(TASKS["QQP"], tmp_path, corpus, tmp_path / "bin")
    assert "1 bad rows of train skipped, the first: " in capsys.readouterr().out
    assert (tmp_path / "bin/QQP/label/train.label").read_text() == "1\n0\n"
    write(tmp_path, text, "QQP/dev.tsv")
    with pytest.raises(ValueError, match=r"dev\.tsv, line 3: 4 columns in place of 6"):
        prepare(TASKS["QQP"], tmp_path, corpus, tmp_path / "bin")


def test_every_task_is_prepared(real: Path) -> None:
    assert PreparedTask.load(real / "AX").rows == {"test": 1104}
    assert not (real / "AX" / "label").exists()


def test_which_tasks(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("STS-B", "CoLA", "Sentiment"):
        (tmp_path / name).mkdir()
    assert choose([], tmp_path) == [(COLA, tmp_path), (STSB, tmp_path)]
    assert "left out, as they are no tasks of this project: Sentiment\n" in capsys.readouterr().out
    assert choose(["STS-B"], tmp_path) == [(STSB, tmp_path)]
    with pytest.raises(ValueError, match="-g GLUE_DIR is missing; only tasks of your own"):
        choose(["STS-B"], None)
    with pytest.raises(FileNotFoundError, match=r"no folder .*/RTE for RTE"):
        choose(["STS-B", "RTE"], tmp_path)
    with pytest.raises(ValueError, match="no task 'Cola'; there are CoLA, SST-2, MRPC"):
        choose(["Cola"], tmp_path)
    with pytest.raises(FileNotFoundError, match="has no folder of a GLUE task"):
        choose([], tmp_path / "CoLA")


def test_damaged_description(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no .*task\.json; scripts/prepare_glue\.sh makes it"):
        PreparedTask.load(tmp_path)
    for text in ('{"task": {}}', "[", "[1]", "5", '{"task": 5, "rows": 1, "vocabulary": 2}', "[" * 100_000):
        (tmp_path / "task.json").write_text(text)
        with pytest.raises(ValueError, match=r"task\.json is damaged .*; prepare the task again"):
            PreparedTask.load(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"metrics": ["accuracy\n--user-dir\n/tmp/evil"]}, "other metrics than RTE here"),
        ({"metrics": []}, "other metrics"),
        ({"epochs": 0}, "other epochs"),
        ({"labels": ["not_entailment", "entailment"]}, "other labels"),
        ({"inputs": []}, "other inputs"),
        ({"splits": {"test": {"submission": "/tmp/escaped.tsv"}}}, "other splits"),
        ({"more": 1}, "other fields"),
        ({"name": "../../escaped"}, "is of '../../escaped', not of RTE"),
        ({"name": 5}, "is of 5, not of RTE"),
        ({"name": "QNLI"}, "is of 'QNLI', not of RTE; prepare RTE there"),
    ],
)
def test_a_description_is_not_believed(tmp_path: Path, change: dict, message: str) -> None:
    """It becomes flags and paths; only what our own table says, too, may pass."""
    PreparedTask(RTE, {"train": 5}, "f").save(tmp_path)
    stored = json.loads((tmp_path / "task.json").read_text())
    assert PreparedTask.load(tmp_path, "RTE") == PreparedTask(RTE, {"train": 5}, "f")
    stored["task"] |= change
    (tmp_path / "task.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=message):
        PreparedTask.load(tmp_path, "RTE")
    if "name" in change and change["name"] not in TASKS:
        with pytest.raises(ValueError, match="is of no task of this project"):
            PreparedTask.load(tmp_path)


@pytest.mark.parametrize(
    "rows", [None, 5, [], {"train": "5"}, {"train": 0}, {"train": 10**400}, {"valid\n--x": 3}]
)
def test_rows_of_a_description(tmp_path: Path, rows: object) -> None:
    PreparedTask(RTE, {"train": 5}, "f").save(tmp_path)
    stored = json.loads((tmp_path / "task.json").read_text())
    (tmp_path / "task.json").write_text(json.dumps({**stored, "rows": rows}))
    with pytest.raises(ValueError, match="is damaged"):
        PreparedTask.load(tmp_path)


# Flags

EPOCH_OF_RTE = 78  # ceil(2490 / 32)


@pytest.mark.parametrize(
    ("given", "epochs", "total", "warmup"),
    [
        ("--batch-size 32", 10, 780, 46),  # 46.8
        ("--max-sentences 32", 10, 780, 46),
        ("--batch-size 16 --batch-size 32 --lr 1e-3", 10, 780, 46),  # the last wins
        ("--batch-size=32 --update-freq 2", 10, 390, 23),  # 39 an epoch; 23.4
        ("--batch-size 32 --update-freq 1,2", 10, 78 + 9 * 39, 25),  # 25.74
        ("--batch-size 32 --max-epoch 3", 3, 234, 14),  # 14.04
        ("--batch-size 32 --max-update 100", 10, 100, 6),
        ("--batch-size 32 --max-update 10000", 10, 780, 46),
        ("--batch-size 32 --distributed-world-size 4", 10, 200, 12),  # 19.5 -> 20 an epoch
        ("--batch-size 2490 --max-epoch 2", 2, 2, 1),  # at least 1
        ("--max-tokens 999 --total-num-update 500", 10, 500, 30),
    ],
)
def test_schedule(given: str, epochs: int, total: int, warmup: int) -> None:
    prepared = PreparedTask(RTE, {"train": 2490}, "")
    assert glue_flags.schedule_flags(prepared, given.split()) == [
        *("--max-epoch", str(epochs)),
        *("--total-num-update", str(total)),
        *("--warmup-updates", str(warmup)),
    ]


@pytest.mark.parametrize(
    "given, sentence",
    [
        ([], "--batch-size is missing"),
        (
            ["--max-tokens", "600", "--batch-size", "16"],
            "with --max-tokens nobody knows the number of updates",
        ),
        (["--batch-size", "16", "--max-epoch", "0"], "--max-epoch 0 would train without end"),
        (["--batch-size", "0"], "--batch-size and --update-freq must be 1 or more"),
        (["--batch-size", "16", "--update-freq", "0"], "--batch-size and --update-freq must be 1 or more"),
    ],
)
def test_schedules_that_cannot_be_are_refused(given: list[str], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        glue_flags.schedule_flags(PreparedTask(RTE, {"train": 100}, ""), given)
    assert sentence in str(error.value)


OPTIONS = {
    "_name": "tupe_a_tiny",
    "variant": "tupe_a",
    "encoder_layers": 2,
    "encoder_embed_dim": 128,
    "encoder_ffn_embed_dim": 512,
    "encoder_attention_heads": 2,
    "max_positions": 64,
    "rel_pos_bins": 32,
    "max_rel_pos": 128,
    "dropout": 0.3,
    "attention_dropout": 0.3,
    "activation_dropout": 0.3,
    "pooler_dropout": 0.3,
}


def save(path: Path, vocabulary: int, fingerprint: str | None = None) -> Path:
    """The parts of a checkpoint that the flags come from."""
    model = {"encoder.embed_tokens.weight": torch.zeros(vocabulary, 1)}
    state = {"vocabulary": fingerprint} if fingerprint else {}
    torch.save({"cfg": {"model": OPTIONS}, "model": model, "task_state": state}, path)
    return path


def test_flags(tmp_path: Path, corpus: Path) -> None:
    tiny_glue.make_rte(tmp_path, corpus, train=40)
    checkpoint = save(tmp_path / "c.pt", vocabulary=301)  # 300 pieces and <mask>
    words = glue_flags.flags("RTE", tmp_path / "bin", checkpoint, ["--batch-size", "8"])
    given = dict(zip(words[:-1:2], words[1::2]))
    assert given == {
        "--arch": "tupe_a_tiny",
        "--variant": "tupe_a",
        "--encoder-layers": "2",
        "--encoder-embed-dim": "128",
        "--encoder-ffn-embed-dim": "512",
        "--encoder-attention-heads": "2",
        "--max-positions": "64",
        "--rel-pos-bins": "32",
        "--max-rel-pos": "128",
        "--tokens-per-sample": "64",
        "--max-epoch": "10",
        "--total-num-update": "50",
        "--warmup-updates": "3",
        "--valid-subset": "valid",
        "--best-checkpoint-metric": "accuracy",
    }
    assert words[-1] == "--maximize-best-checkpoint-metric"


def test_rows_are_at_most_as_long_as_in_the_paper() -> None:
    words = glue_flags.shape_flags({**OPTIONS, "max_positions": 1024}, 1024)
    assert words[words.index("--max-positions") + 1] == "1024"
    assert words[words.index("--tokens-per-sample") + 1] == "512"


def test_another_vocabulary_is_refused(tmp_path: Path, corpus: Path) -> None:
    tiny_glue.make_rte(tmp_path, corpus)
    checkpoint = save(tmp_path / "c.pt", vocabulary=2001)
    with pytest.raises(ValueError, match=r"a vocabulary of 2,001 there, of 301 here .*; prepare the data"):
        glue_flags.flags("RTE", tmp_path / "bin", checkpoint, ["--batch-size", "8"])
    checkpoint = save(tmp_path / "c.pt", vocabulary=301, fingerprint="0")
    with pytest.raises(ValueError, match="another vocabulary of the same 301 pieces"):
        glue_flags.flags("RTE", tmp_path / "bin", checkpoint, ["--batch-size", "8"])
    own = ["<s>", "<pad>", "</s>", "<unk>", *Vocabulary(corpus).pieces[4:], "<mask>"]
    checkpoint = save(tmp_path / "c.pt", vocabulary=301, fingerprint=dictionary_fingerprint(own))
    glue_flags.flags("RTE", tmp_path / "bin", checkpoint, ["--batch-size", "8"])


def test_more_positions_make_room(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture) -> None:
    tiny_glue.make_rte(tmp_path, corpus)
    checkpoint = save(tmp_path / "c.pt", vocabulary=301)
    for given, tokens in (([], 64), (["--max-positions", "256"], 256), (["--max-positions", "600"], 512)):
        words = glue_flags.flags("RTE", tmp_path / "bin", checkpoint, ["--batch-size", "8", *given])
        assert words[words.index("--tokens-per-sample") + 1] == str(tokens)
        cut = f"positions for {tokens} tokens; longer rows are cut (--max-positions N --resize-positions"
        assert (cut in capsys.readouterr().err) == (tokens < 512)


# Commands


def test_errors_are_one_sentence(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_glue.make_rte(tmp_path, corpus)
    (tmp_path / "c.pt").write_text("text")
    monkeypatch.setattr("sys.argv", ["", "RTE", str(tmp_path / "bin"), str(tmp_path / "c.pt")])
    with pytest.raises(SystemExit, match=r"^finetune_glue: \S+c\.pt is no checkpoint.*$"):
        glue_flags.main()
    options = ["-g", str(tmp_path / "glue"), "-c", str(corpus), "-o", str(tmp_path / "bin")]
    monkeypatch.setattr("sys.argv", ["", *options, "CoLA"])
    with pytest.raises(SystemExit, match=r"^prepare_glue: no folder \S+CoLA for CoLA$"):
        main()


def script(root: Path, name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", root / "scripts" / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("name", ["prepare_glue.sh", "finetune_glue.sh"])
def test_usage(root: Path, name: str) -> None:
    shown = script(root, name, "-h")
    assert shown.returncode == 0
    assert f"bash scripts/{name}" in shown.stdout and shown.stderr == ""


def test_finetuning_script_needs_a_checkpoint_and_data(tmp_path: Path, root: Path) -> None:
    (tmp_path / "bin/RTE").mkdir(parents=True)
    missing = script(root, "finetune_glue.sh", "RTE", tmp_path / "bin", tmp_path / "c.pt", tmp_path / "save")
    assert missing.returncode == 1
    assert missing.stderr == (
        f"finetune_glue: no checkpoint {tmp_path}/c.pt; scripts/pretrain.sh makes one\n"
    )
    missing = script(root, "finetune_glue.sh", "CoLA", tmp_path / "bin", tmp_path / "c.pt", tmp_path / "save")
    assert missing.returncode == 1
    assert f"no folder {tmp_path}/bin/CoLA; scripts/prepare_glue.sh" in missing.stderr
    assert not (tmp_path / "save").exists()


@pytest.mark.slow
def test_finetuning_script_prints_its_command(tmp_path: Path, root: Path, corpus: Path) -> None:
    tiny_glue.make_rte(tmp_path, corpus, train=40)
    save(tmp_path / "c.pt", vocabulary=301)
    arguments = ["RTE", tmp_path / "bin", tmp_path / "c.pt", tmp_path / "save"]
    shown = script(root, "finetune_glue.sh", *arguments, "--batch-size", 8, "--lr", "1e-3", DRY_RUN="1")
    assert shown.returncode == 0, shown.stderr
    words = shown.stdout.split()
    assert words[:3] == ["python", "-m", "tupe_fairseq.train"] and str(tmp_path / "bin/RTE") in words
    assert words[words.index("--finetune-from-model") + 1] == str(tmp_path / "c.pt")
    assert words[words.index("--total-num-update") + 1] == "50"  # 5 batches of the user's 8 rows, 10 epochs
    assert words[-4:] == ["--batch-size", "8", "--lr", "1e-3"]


@pytest.mark.slow
def test_preparing_script(tmp_path: Path, root: Path, corpus: Path) -> None:
    tiny_glue.write_task(tmp_path / "glue/RTE", *(tiny_glue.rte_rows(n) for n in (6, 4, 2)))
    options = ["-g", tmp_path / "glue", "-c", corpus, "-o", tmp_path / "bin"]
    done = script(root, "prepare_glue.sh", *options)
    assert done.returncode == 0, done.stderr
    assert PreparedTask.load(tmp_path / "bin/RTE").rows == {"train": 6, "valid": 4, "test": 2}


def test_raw_data_is_never_replaced(corpus: Path, tmp_path: Path) -> None:
    """GLUE_BIN and GLUE_DIR are the same folder by mistake."""
    rows = tiny_glue.rte_rows(6)
    tiny_glue.write_task(tmp_path / "RTE", rows, rows, rows)
    before = {path: path.read_bytes() for path in (tmp_path / "RTE").iterdir()}
    with pytest.raises(ValueError, match=r"RTE exists and was not made by prepare_glue.sh"):
        prepare(RTE, tmp_path, corpus, tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "RTE").iterdir()} == before
