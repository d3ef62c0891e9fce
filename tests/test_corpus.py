"""From raw text to fairseq's rows: the command, what it writes, and what goes wrong."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import commands
import pytest
from fairseq.data import Dictionary, TokenBlockDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from tiny_corpus import TWENTY, contents, documents, read_documents, rows, run, sentence, summary_of, written

from tupe_fairseq import cleaning, corpus, encoding
from tupe_fairseq.corpus import Settings
from tupe_fairseq.splitting import SPLITS, draw
from tupe_fairseq.vocabulary import EOS, UNK, Vocabulary


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    """Takes back the signal handlers that the command sets for its process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def all_rows(folder: Path) -> list[list[int]]:
    return [row for split in SPLITS for row in rows(folder / "bin" / split)]


# ---- The corpus ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    assert run(folder, written(folder / "text", TWENTY), "--valid-every", "5") == 0
    return folder / "corpus"


def test_files(made: Path) -> None:
    assert sorted(contents(made)) == [
        "bin/dict.txt", "bin/train.bin", "bin/train.idx", "bin/valid.bin", "bin/valid.idx",
        "dict.txt", "spm.model",
    ]  # fmt: skip
    assert sorted(path.name for path in made.parent.iterdir()) == ["corpus", "text"]
    umask = os.umask(0)
    os.umask(umask)
    assert made.stat().st_mode & 0o777 == 0o777 & ~umask


def test_dictionary_counts_the_ids_of_train(made: Path) -> None:
    counts = Counter(i for row in rows(made / "bin" / "train") for i in row)
    dictionary = Dictionary.load(str(made / "bin" / "dict.txt"))
    assert dictionary.symbols == Vocabulary(made).pieces
    assert dictionary.count[4:] == [counts[i] for i in range(4, 60)]
    assert (made / "dict.txt").read_bytes() == (made / "bin" / "dict.txt").read_bytes()


def test_summary_is_true(made: Path) -> None:
    summary = summary_of(made)
    ids = {split: [i for row in rows(made / "bin" / split) for i in row] for split in SPLITS}
    assert summary["tokens"] == {split: len(ids[split]) for split in ids}
    assert summary["rows"] == {split: ids[split].count(EOS) for split in ids}
    assert summary["longest_row"] == max(map(len, all_rows(made)))
    assert summary["lines"] == {"read": 119, "blank": 19, "kept": 100}
    assert summary["documents"] == {split: len(read_documents(made, split)) for split in ids}
    assert summary["unknown_share"] == 0
    shares = [number / len(ids["valid"]) for number in Counter(ids["valid"]).values()]
    assert summary["unigram_bits"] == pytest.approx(-sum(p * math.log2(p) for p in shares))
    assert summary["bytes"] == sum(len(line) + 1 for document in TWENTY for line in document) + 19
    assert summary["vocabulary"] == 60
    assert summary["notes"] == [
        f"only {len(ids['valid']):,} tokens validate; a smaller --valid-every takes more"
    ]


def test_fairseq_sees_the_documents(made: Path) -> None:
    dataset = MMapIndexedDataset(str(made / "bin" / "train"))
    blocks = TokenBlockDataset(
        dataset, dataset.sizes, 10_000, pad=1, eos=EOS, break_mode="complete_doc", document_sep_len=1
    )
    decode = Vocabulary(made).decode
    text = [[decode(part) for part in split_at_eos(block.tolist())] for block in blocks]
    assert text == read_documents(made, "train")


def split_at_eos(ids: list[int]) -> list[list[int]]:
    return [list(group) for end, group in groupby(ids, lambda i: i == EOS) if not end]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lengths", [(1, 1), (3, 1, 2), (2,) * 30])
def test_documents_go_whole_to_one_side(tmp_path: Path, lengths: tuple[int, ...], seed: int) -> None:
    text = documents(*lengths)
    assert run(tmp_path, written(tmp_path / "text", text), "--valid-every", "8", "--seed", str(seed)) == 0
    train, valid = (read_documents(tmp_path / "corpus", split) for split in SPLITS)
    assert train
    assert valid
    assert sorted(train + valid) == sorted(text)
    assert [document for document in text if document in train] == train, "in their order"


def test_where_none_is_drawn_one_of_fitting_length_validates(tmp_path: Path) -> None:
    text = documents(30, 1, 9, 60)  # one in ten of 100 lines is 10
    assert run(tmp_path, written(tmp_path / "text", text), "--valid-every", "10", "--seed", "3") == 0
    assert not any(draw(number, 3, 10) for number in range(4)), "choose another seed"
    assert read_documents(tmp_path / "corpus", "valid") == [text[2]]
    assert read_documents(tmp_path / "corpus", "train") == [text[0], text[1], text[3]]


def test_one_document_is_split_by_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = documents(29)
    assert run(tmp_path, written(tmp_path / "text", text), "--shrink-vocab", "--valid-every", "10") == 0
    assert read_documents(tmp_path / "corpus", "train") == [text[0][:-2]]
    assert read_documents(tmp_path / "corpus", "valid") == [text[0][-2:]]
    assert "one document (no blank line); of its 29 lines the last 2 validate" in capsys.readouterr().out


def test_files_end_documents(tmp_path: Path) -> None:
    texts = [written(tmp_path / str(i), [document]) for i, document in enumerate(TWENTY)]
    texts[3].write_bytes(gzip.compress(texts[3].read_bytes()))
    assert run(tmp_path, texts[0], "--valid-every", "5", *map(str, texts[1:]), str(texts[0])) == 0
    assert summary_of(tmp_path / "corpus")["dropped"]["repeated"] == 5
    assert sum(len(read_documents(tmp_path / "corpus", split)) for split in SPLITS) == 20


@pytest.mark.parametrize("size", [1, 1000])
def test_workers_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    text = written(tmp_path / "text", [*TWENTY, TWENTY[3], [sentence(1000), sentence(7).upper(), "short"]])
    flags = ["--valid-every", "5"]
    assert run(tmp_path, text, *flags) == 0
    (tmp_path / "corpus").rename(tmp_path / "one")
    monkeypatch.setattr(cleaning, "CHUNK_CHARACTERS", size)
    monkeypatch.setattr(encoding, "CHUNK_BYTES", size)
    assert run(tmp_path, text, *flags, "--workers", "3") == 0
    assert summary_of(tmp_path / "one")["dropped"]["repeated"] == 6
    assert contents(tmp_path / "corpus") == contents(tmp_path / "one")
    assert summary_of(tmp_path / "corpus") == summary_of(tmp_path / "one")


def test_stages_tell_their_speed(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())
    stages = summary["stages"]
    assert list(stages) == ["cleaning", "vocabulary", "encoding"]
    clean = summary["bytes"]  # nothing goes from this text
    assert [stage["bytes"] for stage in stages.values()] == [clean, stages["vocabulary"]["bytes"], clean - 1]
    assert 0 < sum(stage["seconds"] for stage in stages.values()) <= summary["seconds"]
    for stage in stages.values():
        assert stage["mb_per_second"] == pytest.approx(stage["bytes"] / 1e6 / stage["seconds"])


def test_a_second_run_replaces_the_corpus_alone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, written(tmp_path / "text", documents(9, 9))) == 0
    assert "replacing" not in capsys.readouterr().out
    (tmp_path / "corpus" / "notes.txt").write_text("mine")
    assert run(tmp_path, written(tmp_path / "text", TWENTY), "--valid-every", "5") == 0
    assert f"replacing the corpus in {tmp_path / 'corpus'}" in capsys.readouterr().out
    assert contents(tmp_path / "corpus") == contents(made) | {"notes.txt": b"mine"}


# ---- What deserves a note --------------------------------------------------------------------------


def test_undecodable_bytes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(tmp_path / "text", TWENTY)
    text.write_bytes(text.read_bytes().replace(b"family", b"famil\xe9"))
    damaged = text.read_bytes().count(b"\xe9")
    assert run(tmp_path, text) == 0
    assert (
        f"text has bytes that are no UTF-8, or U+FFFD, which once were such ({damaged})"
        in capsys.readouterr().out
    )


def test_many_unknown_pieces_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = documents(20, 1)
    text[1][0] += " 字 a" * 40  # the last document is the shortest, so that it validates
    assert run(tmp_path, written(tmp_path / "text", text), "--min-letter-share", "0.5") == 0
    pieces = [i for row in all_rows(tmp_path / "corpus") for i in row if i != EOS]
    assert pieces.count(UNK) == 40
    assert summary_of(tmp_path / "corpus")["unknown_share"] == 40 / len(pieces)
    assert "% of the pieces are unknown: the vocabulary lacks" in capsys.readouterr().out


def test_large_texts_say_that_they_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encoding, "TRAINING_BYTES", 5000)
    assert run(tmp_path, written(tmp_path / "text", TWENTY)) == 0
    assert "note: the vocabulary is learnt from 5,000 bytes, evenly spread" in capsys.readouterr().out


# ---- What goes wrong -------------------------------------------------------------------------------


def test_vocabulary_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(tmp_path / "text", TWENTY)
    assert run(tmp_path, text, "-v", "100000") == 1
    assert capsys.readouterr().err.endswith("; give that or less, or --shrink-vocab\n")
    assert run(tmp_path, text, "-v", "10") == 1
    assert "too small" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [text], "nothing was written"
    assert run(tmp_path, text, "-v", "100000", "--shrink-vocab") == 0
    assert "pieces, not 100,000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "only blank lines"),
        (b" \n\r\n\t\n", "only blank lines"),
        (b"short\n" * 3, r"no line is left after cleaning \(3 too short\); --min-letters"),
        (
            "短い文章です。\n".encode("shift-jis") * 3,
            r"left after cleaning \(3 too short\); .*text has .* no UTF-8",
        ),
        (sentence(1).encode(), "one line is left"),
    ],
)
def test_too_little_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, words: str) -> None:
    (tmp_path / "text").write_bytes(data)
    assert run(tmp_path, tmp_path / "text") == 1
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ValueError, match=words):
        corpus.prepare(Settings([tmp_path / "text"], tmp_path / "corpus"))
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("name", ["nowhere", ".", "text/x", "/dev/null"])
def test_wrong_names_are_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = written(tmp_path / "text", TWENTY)
    assert run(tmp_path, text, str(tmp_path / name)) == 1
    out, err = capsys.readouterr()
    assert err == f"corpus: {tmp_path / name} is no file; TEXT names texts, plain or gzip\n"
    assert not out, "nothing was begun"


def test_output_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(tmp_path / "text", TWENTY)
    (tmp_path / "corpus").write_text("mine")
    assert run(tmp_path, text) == 1
    assert "corpus is a file; -o names a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["-v", "4"],
        ["--workers", "0"],
        ["--valid-every", "1"],
        ["--min-letters", "0"],
        ["--min-letter-share", "2"],
        ["--max-unknown", "2"],
    ],
)
def test_flags_out_of_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, tmp_path / "text", *flags)
    assert "is not within" in capsys.readouterr().err


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def terminate(*_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def hang_up(*_: object) -> None:
    signal.raise_signal(signal.SIGHUP)


def fill_the_disk(*_: object) -> None:
    raise OSError(28, "full")


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (interrupt, "interrupted"),
        (terminate, "interrupted"),
        (hang_up, "interrupted"),
        (fill_the_disk, "full"),
    ],
)
@pytest.mark.parametrize("step", ["clean_texts", "learn_vocabulary", "encode", "summarize"])
def test_a_run_that_ends_early_changes_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    step: str, fail, words: str,
) -> None:  # fmt: skip
    text = written(tmp_path / "text", TWENTY)
    with monkeypatch.context() as patch:
        patch.setattr(corpus, step, fail)
        assert run(tmp_path, text) == 1
        assert words in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == [text]
    assert run(tmp_path, text, "--valid-every", "5") == 0
    monkeypatch.setattr(corpus, step, fail)
    assert run(tmp_path, text) == 1
    assert contents(tmp_path / "corpus") == contents(made), "the older corpus is untouched"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "text"]


def die(*_: object, **__: object) -> None:
    signal.raise_signal(signal.SIGKILL)


@pytest.mark.parametrize(("module", "work"), [(cleaning, "_judge"), (encoding, "_encode_lines")])
def test_a_killed_worker_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module, work: str
) -> None:
    text = written(tmp_path / "text", TWENTY)
    monkeypatch.setattr(module, work, die)
    assert run(tmp_path, text, "--workers", "2") == 1
    assert "a worker was killed, perhaps for want of memory; try fewer" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [text]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_leaves_nothing(root: Path, tmp_path: Path, number: int) -> None:
    """As Ctrl-C, or the end of a terminal; the pipe ends when the last process has ended."""
    text = tmp_path / "text"
    with text.open("w") as file:
        for i in range(200_000):
            file.write(f"{sentence(i % 100)} {i}\n")
    command = [sys.executable, "-m", "tupe_fairseq.corpus", "-o", "corpus", "--workers", "2", "text"]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "cleaning text\n"
        os.killpg(process.pid, number)
        rest = process.stdout.read()
    assert process.returncode == 1
    assert "corpus: interrupted; nothing was written" in rest or "a worker was killed" in rest
    assert list(tmp_path.iterdir()) == [text]


def test_an_ignored_hang_up_stays_ignored(tmp_path: Path) -> None:
    """As nohup leaves it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert run(tmp_path, written(tmp_path / "text", TWENTY)) == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_an_error_while_replacing_brings_the_older_corpus_back(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written(tmp_path / "text", TWENTY)
    assert run(tmp_path, text, "--valid-every", "5") == 0
    monkeypatch.setattr(corpus, "FILES", (*corpus.FILES, "none of this name"))  # cannot be moved, the last
    assert run(tmp_path, text) == 1
    assert contents(tmp_path / "corpus") == contents(made)
    assert summary_of(tmp_path / "corpus") == summary_of(made)


def test_another_corpus_gives_its_vocabulary(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "text", documents(*[3] * 30))
    command = ["-o", str(tmp_path / "corpus"), "--vocab-from", str(made), str(file)]
    assert corpus.main([*command, "--shrink-vocab"]) == 1
    assert "--shrink-vocab is for a vocabulary that is learnt" in capsys.readouterr().err
    assert corpus.main(command) == 0
    assert f"note: the vocabulary is that of {made}\n" in capsys.readouterr().out
    for name in ("spm.model", "dict.txt", "bin/dict.txt"):
        assert (tmp_path / "corpus" / name).read_bytes() == (made / name).read_bytes()
    text = [
        line for split in SPLITS for lines in read_documents(tmp_path / "corpus", split) for line in lines
    ]
    assert sorted(text) == sorted(map(sentence, range(90)))
    with pytest.raises(SystemExit):
        corpus.main([*command, "-v", "60"])
    assert "not allowed with" in capsys.readouterr().err


def test_a_text_in_another_script_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = written(tmp_path / "text", [["\u5b57" * 60, "\u5b57" * 61], ["\u5b57" * 62]])
    command = ["-o", str(tmp_path / "corpus"), "--vocab-from", str(made), str(text)]
    assert corpus.main(command) == 1  # a line is a word mark and one unknown, of two pieces
    assert capsys.readouterr().err.startswith(
        "corpus: 50.0% of the pieces are unknown, over --max-unknown 0.2"
    )
    assert not (tmp_path / "corpus").exists()
    assert corpus.main([*command, "--max-unknown", "0.5"]) == 0
    assert "note: 50.0% of the pieces are unknown" in capsys.readouterr().out


# ---- The script, and real files --------------------------------------------------------------------


@pytest.mark.slow
def test_script(root: Path, made: Path, tmp_path: Path) -> None:
    script = ("bash", root / "scripts" / "prepare_corpus.sh")
    assert "prepare_corpus.sh -o CORPUS" in commands.run(*script, "-h", cwd=tmp_path)
    text = written(tmp_path / "a text", TWENTY)
    arguments = ["-o", "a corpus", "-v", "60", "--valid-every", "5", text.name]
    dry = commands.run(*script, *arguments, cwd=tmp_path, DRY_RUN="1")
    assert dry.startswith("python -m tupe_fairseq.corpus -o ")
    assert not (tmp_path / "a corpus").exists()
    commands.run(*script, *arguments, cwd=tmp_path)
    assert contents(tmp_path / "a corpus") == contents(made)
    assert commands.attempt(*script, "-o", "other", "nowhere", cwd=tmp_path).returncode == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("DERIVED_crlf_bom_wiki.txt", 4), ("DERIVED_mixed_utf8_latin1.txt", 4), ("wikiextractor_wiki_00", 8),
        ("DERIVED_blank_lines.txt", 68), ("udhr/arb.txt", None), ("udhr/jpn.txt", None),
        ("udhr/tha.txt", None), ("sotu_cp1252_1954-Eisenhower.txt", None),
    ],
)  # fmt: skip
def test_ugly_files(shared_data: Path, tmp_path: Path, name: str, documents: int | None) -> None:
    path = shared_data / "ugly" / name
    summary = corpus.prepare(Settings([path], tmp_path / "corpus", shrink_vocab=True))
    lines = summary["lines"]
    assert lines["read"] == lines["blank"] + lines["kept"] + sum(summary["dropped"].values())
    assert sum(row != [EOS] for row in all_rows(tmp_path / "corpus")) == lines["kept"]
    assert documents in (None, sum(summary["documents"].values()))
    data = path.read_bytes()
    invalid = len(data) - len(data.decode("utf-8", "ignore").encode()) + data.count("\ufffd".encode())
    assert summary["removed"]["undecodable bytes"] == invalid


def test_folders_that_are_no_corpus_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tool = tmp_path / "home" / "bin" / "mytool"
    tool.parent.mkdir(parents=True)
    tool.write_text("precious")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{i} " + "a line that is long enough to stay here " * 3 for i in range(9)))
    assert corpus.main(["-o", str(tmp_path / "home"), "-v", "60", str(text)]) == 1
    assert "holds bin, but no corpus; name another folder with -o" in capsys.readouterr().err
    assert tool.read_text() == "precious"
