"""Predictions for GLUE: the model row by row, real test files, what is refused, a folder on its own."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tiny_glue
import tiny_model
import torch
from commands import attempt, run

from tupe_fairseq import glue_flags
from tupe_fairseq.config import TupeConfig
from tupe_fairseq.glue import TASKS, WORD_ORDER, PreparedTask
from tupe_fairseq.glue_data import prepare
from tupe_fairseq.glue_predict import add_predict_arguments, run_predict, submission_lines, write_lines
from tupe_fairseq.glue_reader import choose_splits
from tupe_fairseq.model import TupeModel
from tupe_fairseq.token_file import TokenFile
from tupe_fairseq.vocabulary import Vocabulary, dictionary_fingerprint

HEADER = "index\tprediction"
POSITIONS = 40
NLI_HEADER = ["index", "sentence1", "sentence2", "gold_label"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_glue.make_corpus(tmp_path_factory.mktemp("corpus") / "corpus")


@pytest.fixture(scope="module")
def words(corpus: Path) -> Vocabulary:
    return Vocabulary(corpus)


@pytest.fixture(scope="module")
def rte(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE_BIN with RTE: 29 dev rows; 23 test rows of all lengths, row 7 of 3,000 tokens and more."""
    folder = tmp_path_factory.mktemp("rte")
    test = tiny_glue.rte_rows(23, words=6)
    test[1 + 7][1] = " ".join(["import"] * 3000)
    tiny_glue.write_task(folder / "glue/RTE", tiny_glue.rte_rows(6), tiny_glue.rte_rows(29), test)
    prepare(TASKS["RTE"], folder / "glue", corpus, folder / "bin")
    return folder / "bin"


@pytest.fixture(scope="module")
def stsb(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    scores = [f"{48 - 13 * i % 49}e-1" for i in range(17)]  # 4.8, 3.5, ...
    return tiny_glue.make_stsb(tmp_path_factory.mktemp("stsb"), corpus, scores).parent


def make_model(vocabulary: int, outputs: int | None, positions: int = POSITIONS) -> TupeModel:
    """One layer of width 8, with weights so large that rows get different predictions.

    The outputs of random rows are 0 on average, or 0.5 if there is one; not all lie between 0 and 1.
    """
    shape = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 16}
    cfg = TupeConfig(**shape, encoder_attention_heads=2, max_positions=positions)
    torch.manual_seed(1)
    model = TupeModel(cfg, vocabulary, padding_idx=1).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" not in name:
                parameter.normal_(std=0.5)
        if outputs:
            model.register_classification_head("any_name", outputs)
            head = model.eval().classification_heads["any_name"]
            head.dense.weight.normal_()
            head.out_proj.weight.normal_()
            tokens = torch.randint(4, vocabulary - 1, (200, 20))
            tokens[:, 0] = 0
            mean = model(tokens, classification_head_name="any_name")[0].mean(dim=0)
            head.out_proj.bias.copy_((0.5 if outputs == 1 else 0) - mean)
    return model


def save(path: Path, model: TupeModel, task: str | None, words: Vocabulary | None, **changes: Any) -> Path:
    """A checkpoint as fairseq-train writes it, but for what does not matter here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {**tiny_model.checkpoint(model), "task_state": {}}
    if task:
        state["task_state"]["glue_task"] = task
    if words:
        state["task_state"]["vocabulary"] = dictionary_fingerprint([*words.pieces, "<mask>"])
    torch.save({**state, **changes}, path)
    return path


def predict(*arguments: object) -> None:
    """As the command line does it."""
    parser = argparse.ArgumentParser()
    add_predict_arguments(parser)
    run_predict(parser.parse_args([*map(str, arguments), "--cpu"]))


def joined(words: Vocabulary, texts: list[str], longest: int) -> list[int]:
    """The tokens of a row, cut one by one from the longer sentence."""
    parts = [words.encode(text) for text in texts]
    while sum(map(len, parts)) + 2 * len(parts) > longest:
        parts[0 if len(parts) == 1 or len(parts[0]) > len(parts[1]) else 1].pop()
    first = [0, *parts[0], 2]
    return [*first, 2, *parts[1], 2] if len(parts) == 2 else first


def alone(model: TupeModel, words: Vocabulary, texts: list[str]) -> list[float]:
    """The outputs for one row, unbatched and unpadded."""
    tokens = torch.tensor([joined(words, texts, POSITIONS)])
    with torch.no_grad():
        return model(tokens, classification_head_name="any_name")[0][0].tolist()


def raw(path: Path, *columns: int) -> list[list[str]]:
    """Columns of a GLUE file without its header."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [[line.split("\t")[column] for column in columns] for line in lines]


def names(outputs: list[list[float]], labels: tuple[str, ...]) -> list[str]:
    return [labels[max(range(len(labels)), key=row.__getitem__)] for row in outputs]


def read(path: Path) -> list[str]:
    """The lines of a file that ends with a line's end."""
    text = path.read_bytes().decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def numbered(predictions: list[str]) -> list[str]:
    return [HEADER, *(f"{i}\t{prediction}" for i, prediction in enumerate(predictions))]


# Predictions


def test_test_rows_as_if_read_one_by_one(
    rte: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = make_model(301, 2)
    checkpoint = save(tmp_path / "c.pt", model, "RTE", words)
    texts = raw(rte.parent / "glue/RTE/test.tsv", 1, 2)
    assert len(words.encode(texts[7][0])) >= 3000
    expected = names([alone(model, words, row) for row in texts], ("entailment", "not_entailment"))
    assert 3 < expected.count("entailment") < 20, "both labels occur"
    for batch_size in (1, 4, 32):
        predict(checkpoint, rte, "RTE", "-o", tmp_path / "out", "--batch-size", batch_size)
        assert read(tmp_path / "out/RTE.tsv") == numbered(expected)
    cut = sum(sum(len(words.encode(text)) for text in row) + 4 > POSITIONS for row in texts)
    said = capsys.readouterr().out
    assert said.count(f"RTE test: 23 rows, {cut} cut to 40 tokens; warning: GLUE's has 3,000 rows") == 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["RTE.tsv"], "no temporary file stays"


@pytest.mark.parametrize(
    ("positions", "trained", "longest"), [(600, 1024, 512), (600, None, 512), (40, 12, 12)]
)
def test_rows_are_cut_as_in_training(
    rte: Path,
    words: Vocabulary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    positions: int,
    trained: int | None,
    longest: int,
) -> None:
    """What the model reads, in batches of similar length."""
    checkpoint = save(tmp_path / "c.pt", make_model(301, 2, positions), "RTE", words)
    state = torch.load(checkpoint)
    state["cfg"]["task"] = {"tokens_per_sample": trained}
    torch.save(state, checkpoint)
    batches, forward = [], TupeModel.forward

    def spy(self: TupeModel, src_tokens: torch.Tensor, **given: Any) -> Any:
        batches.append([[i for i in row if i != 1] for row in src_tokens.tolist()])
        return forward(self, src_tokens, **given)

    monkeypatch.setattr(TupeModel, "forward", spy)
    predict(checkpoint, rte, "RTE", "-o", tmp_path, "--batch-size", 4)
    texts = raw(rte.parent / "glue/RTE/test.tsv", 1, 2)
    rows = [row for batch in batches for row in batch]
    assert sorted(rows) == sorted(joined(words, row, longest) for row in texts)
    lengths = [len(row) for row in rows]
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]
    assert lengths == sorted(lengths, reverse=True)
    assert f" cut to {longest} tokens" in capsys.readouterr().out


def test_scores_of_stsb(stsb: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    model = make_model(301, 1)
    checkpoint = save(tmp_path / "c.pt", model, "STS-B", words)
    predict(checkpoint, stsb, "STS-B", "-o", tmp_path, "--batch-size", 5)
    scores = [5 * alone(model, words, row)[0] for row in raw(stsb.parent / "glue/STS-B/test.tsv", 7, 8)]
    outside = sum(not 0 <= value <= 5 for value in scores)
    assert 2 < outside < 15
    assert read(tmp_path / "STS-B.tsv") == numbered([f"{min(max(value, 0), 5):.3f}" for value in scores])
    assert f", {outside} predictions clipped to 0..5" in capsys.readouterr().out


def test_decimals_by_hand() -> None:
    numbers = np.array([-0.3, -0.0, 1.23449, 2.0006, 4.9996, 5.2])
    assert submission_lines(TASKS["STS-B"], numbers) == numbered(
        ["0.000", "0.000", "1.234", "2.001", "5.000", "5.000"]
    )


def make_nli(folder: Path, corpus: Path) -> Path:
    """GLUE_BIN with MNLI's two test sets, of 9 and 5 rows, and AX, of 7."""
    for name, rows in (("MNLI/test_matched", 9), ("MNLI/test_mismatched", 5), ("diagnostic/diagnostic", 7)):
        lines = [
            [str(i), tiny_glue.sentence(3 * i + rows, 1 + i), tiny_glue.sentence(i, 4), ""]
            for i in range(rows)
        ]
        tiny_glue.write_tsv(folder / f"glue/{name}.tsv", [NLI_HEADER, *lines], drop_last=1)
    for name in ("MNLI", "AX"):
        prepare(TASKS[name], folder / "glue", corpus, folder / "bin")
    return folder / "bin"


def test_mnli_and_the_diagnostics(corpus: Path, words: Vocabulary, tmp_path: Path) -> None:
    glue_bin, model = make_nli(tmp_path, corpus), make_model(301, 3)
    checkpoint = save(tmp_path / "c.pt", model, "MNLI", words)
    predict(checkpoint, glue_bin, "MNLI", "-o", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    predict(checkpoint, glue_bin, "AX", "-o", tmp_path / "out")
    for file, source in (
        ("MNLI-m", "MNLI/test_matched"),
        ("MNLI-mm", "MNLI/test_mismatched"),
        ("AX", "diagnostic/diagnostic"),
    ):
        outputs = [alone(model, words, row) for row in raw(tmp_path / f"glue/{source}.tsv", 1, 2)]
        expected = names(outputs, ("contradiction", "neutral", "entailment"))
        assert read(tmp_path / f"out/{file}.tsv") == numbered(expected)


def test_dev_rows_with_labels_and_metrics(
    rte: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = make_model(301, 2)
    checkpoint = save(tmp_path / "c.pt", model, "RTE", words)
    predict(checkpoint, rte, "RTE", "-o", tmp_path, "--split", "valid", "--split", "test")
    rows = raw(rte.parent / "glue/RTE/dev.tsv", 1, 2, 3)
    labels = [row.pop() for row in rows]
    expected = names([alone(model, words, row) for row in rows], TASKS["RTE"].labels)
    lines = [f"{i}\t{a}\t{b}" for i, (a, b) in enumerate(zip(expected, labels))]
    assert read(tmp_path / "RTE.valid.tsv") == [f"{HEADER}\tlabel", *lines]
    assert len(read(tmp_path / "RTE.tsv")) == 24
    accuracy = sklearn.metrics.accuracy_score(labels, expected)
    assert f"; accuracy {accuracy:.4f} -> " in capsys.readouterr().out


def test_metrics_of_stsb_are_those_of_the_file(
    stsb: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = make_model(301, 1)
    checkpoint = save(tmp_path / "c.pt", model, "STS-B", words)
    predict(checkpoint, stsb, "STS-B", "-o", tmp_path, "--split", "valid")
    table = [[float(x) for x in line.split("\t")] for line in read(tmp_path / "STS-B.valid.tsv")[1:]]
    _, predictions, labels = np.array(table).T
    rows = raw(stsb.parent / "glue/STS-B/dev.tsv", 7, 8, 9)
    assert labels.tolist() == [float(row[2]) for row in rows]
    assert predictions.tolist() == pytest.approx(
        [5 * alone(model, words, row[:2])[0] for row in rows], abs=1e-5
    )
    pearson, spearman = (f(predictions, labels)[0] for f in (scipy.stats.pearsonr, scipy.stats.spearmanr))
    both = f"pearson {pearson:.4f}, spearman {spearman:.4f}, pearson_spearman {(pearson + spearman) / 2:.4f}"
    assert f"; {both} -> " in capsys.readouterr().out


def test_metrics_that_are_undefined_say_why(
    stsb: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = make_model(301, 1)
    with torch.no_grad():
        model.classification_heads["any_name"].out_proj.weight.zero_()
        model.classification_heads["any_name"].out_proj.bias.fill_(0.5)
    predict(save(tmp_path / "c.pt", model, "STS-B", words), stsb, "STS-B", "-o", tmp_path, "--split", "valid")
    assert "pearson 0.0000 (undefined, as all predictions are 2.5)" in capsys.readouterr().out


def test_real_test_files(
    shared_data: Path, corpus: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Raw files, and a line for every row of each; the numbers of rows are GLUE's."""
    rows = {"CoLA": 1063, "SST-2": 1821, "MRPC": 1725, "STS-B": 1379, "QNLI": 5463, "RTE": 3000, "WNLI": 146}
    for name, count in {**rows, "AX": 1104}.items():
        task = TASKS[name]
        for file in ("spm.model", "dict.txt"):
            (tmp_path / name).mkdir(exist_ok=True)
            shutil.copy(corpus / file, tmp_path / name)
        save(tmp_path / name / "checkpoint_best.pt", make_model(301, task.outputs), task.model or name, words)
        predict(tmp_path / name, shared_data / "glue", name, "-o", tmp_path / "out", "--batch-size", 64)
        lines = read(tmp_path / "out" / f"{name}.tsv")
        assert [line.split("\t")[0] for line in lines] == ["index", *map(str, range(count))]
        found = {line.split("\t")[1] for line in lines[1:]}
        if task.regression:
            assert len(found) > 100 and all(0 <= float(x) <= 5 and len(x) == 5 for x in found)
        else:
            assert found == set(task.labels)
    said = [line for line in capsys.readouterr().out.splitlines() if "of the pieces are unknown" not in line]
    assert "warning" not in "".join(said)


# Folders, and raw files


def test_a_folder_means_its_best_checkpoint(
    rte: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(FileNotFoundError, match=r"has neither checkpoint_best\.pt nor "):
        predict(tmp_path, rte, "RTE", "-o", tmp_path / "out")
    model = make_model(301, 2)
    save(tmp_path / "run/checkpoint_last.pt", model, "RTE", words)
    predict(tmp_path / "run", rte, "RTE", "-o", tmp_path / "last")
    assert "run has no checkpoint_best.pt; this is checkpoint_last.pt" in capsys.readouterr().out
    with torch.no_grad():  # the best one says the opposite
        head = model.classification_heads["any_name"].out_proj
        head.weight.neg_(), head.bias.neg_()
    save(tmp_path / "run/checkpoint_best.pt", model, "RTE", words)
    predict(tmp_path / "run", rte, "RTE", "-o", tmp_path / "best")
    assert "note" not in capsys.readouterr().out
    best, last = (read(tmp_path / name / "RTE.tsv")[1:] for name in ("best", "last"))
    assert all(a != b for a, b in zip(best, last))


def test_raw_files_give_the_same(rte: Path, corpus: Path, words: Vocabulary, tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "run/c.pt", make_model(301, 2), "RTE", words)
    with pytest.raises(
        FileNotFoundError, match=r"raw files need the spm.model and dict.txt of the model, which"
    ):
        predict(checkpoint, rte.parent / "glue", "RTE", "-o", tmp_path / "raw")
    predict(checkpoint, rte, "RTE", "-o", tmp_path / "prepared", "--split", "valid", "--split", "test")
    for file in ("spm.model", "dict.txt"):
        shutil.copy(corpus / file, tmp_path / "run")
    glue_dir = rte.parent / "glue"
    predict(checkpoint, glue_dir, "RTE", "-o", tmp_path / "raw", "--split", "valid", "--split", "test")
    for name in ("RTE.tsv", "RTE.valid.tsv"):
        assert read(tmp_path / "raw" / name) == read(tmp_path / "prepared" / name)
    assert sorted(path.name for path in glue_dir.iterdir()) == ["RTE"], "nothing is written beside raw files"


# What is refused


def refused(sentence: str, *arguments: object) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        predict(*arguments)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_checkpoints_that_are_refused(
    rte: Path, words: Vocabulary, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = ("-o", tmp_path / "out")
    model, path = make_model(301, 2), tmp_path / "c.pt"
    refused("no checkpoint", path, rte, "RTE", *out)
    save(path, model, "CoLA", words)
    refused(f"{path} was fine-tuned on CoLA, not on RTE; name another", path, rte, "RTE", *out)
    save(path, make_model(301, None), None, words)
    refused("c.pt has no sentence heads in place of one; finetune_glue.sh", path, rte, "RTE", *out)
    two = make_model(301, 2)
    two.register_classification_head("other", 2)
    save(path, two, "RTE", words)
    refused("c.pt has 2 sentence heads in place of one", path, rte, "RTE", *out)
    save(path, make_model(301, 3), "RTE", words)
    refused("c.pt has a sentence head of 3 outputs; RTE needs 2", path, rte, "RTE", *out)
    save(path, make_model(200, 2), "RTE", words)
    refused("a vocabulary of 200 there, of 301 here", path, rte, "RTE", *out)
    save(path, model, "RTE", None, task_state={"glue_task": "RTE", "vocabulary": "0"})
    refused("another vocabulary of the same 301 pieces", path, rte, "RTE", *out)
    path.write_text("text")
    refused("c.pt is no checkpoint", path, rte, "RTE", *out)
    assert not (tmp_path / "out").exists()
    assert "note" not in capsys.readouterr().out
    save(path, model, None, words)
    predict(path, rte, "RTE", *out)
    assert f"note: {path} does not say which task it was fine-tuned on; it is taken for RTE" in (
        capsys.readouterr().out
    )


def test_the_diagnostics_want_a_model_of_mnli(corpus: Path, words: Vocabulary, tmp_path: Path) -> None:
    glue_bin = make_nli(tmp_path, corpus)
    path = save(tmp_path / "c.pt", make_model(301, 3), "AX", words)
    sentence = "was fine-tuned on AX, not on MNLI, whose models read AX;"
    refused(sentence, path, glue_bin, "AX", "-o", tmp_path / "out")


def test_data_that_is_refused(rte: Path, corpus: Path, words: Vocabulary, tmp_path: Path) -> None:
    path = save(tmp_path / "run/c.pt", make_model(301, 2), "RTE", words)
    out = ("-o", tmp_path / "out")
    refused("no task 'NLI'; there are CoLA, SST-2,", path, rte, "NLI", *out)
    refused(f"no folder {tmp_path}/RTE, and no {tmp_path}/RTE with raw", path, tmp_path, "RTE", *out)
    refused(
        "has no valid1 rows of RTE; there are train, valid, test", path, rte, "RTE", *out, "--split", "valid1"
    )
    refused("--batch-size 0 is no number of rows", path, rte, "RTE", *out, "--batch-size", "0")
    tiny_glue.write_task(tmp_path / "glue/RTE", *(tiny_glue.rte_rows(4) for _ in range(3)))
    (tmp_path / "glue/RTE/test.tsv").unlink()
    prepare(TASKS["RTE"], tmp_path / "glue", corpus, tmp_path / "bin")
    refused(
        f"{tmp_path}/bin has no test rows of RTE; there are train, valid", path, tmp_path / "bin", "RTE", *out
    )
    for file in ("spm.model", "dict.txt"):
        shutil.copy(corpus / file, tmp_path / "run")
    refused("glue/RTE has no test.tsv, so there are no rows of RTE to", path, tmp_path / "glue", "RTE", *out)
    (tmp_path / "glue/WordOrder").mkdir()
    save(path, make_model(301, 2), "WordOrder", words)
    refused("WordOrder has no test rows; see --split", path, tmp_path / "glue", "WordOrder", *out)
    assert not (tmp_path / "out").exists()


def test_no_splits_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no test rows of WordOrder; there are train"):
        choose_splits(PreparedTask(WORD_ORDER, {"train": 3}, ""), [], tmp_path)


def test_files_that_do_not_fit(rte: Path, words: Vocabulary, tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", make_model(301, 2), "RTE", words)
    shutil.copytree(rte, tmp_path / "bin")
    with TokenFile(tmp_path / "bin/RTE/input1/test", 300) as file:
        file.add([5, 2])
    refused("input1/test has 1 rows, task.json 23", path, tmp_path / "bin", "RTE", "-o", tmp_path / "out")
    label = tmp_path / "bin/RTE/label/valid.label"
    label.write_text("entailment\n")
    given = ("RTE", "-o", tmp_path / "out", "--split", "valid")
    refused("valid.label: 1 labels, 29 rows; prepare the task again", path, tmp_path / "bin", *given)


def other_model(folder: Path) -> None:
    """Makes another SentencePiece model of the same pieces, by a field that SentencePiece does not know."""
    with (folder / "spm.model").open("ab") as file:
        file.write(b"\xf8\x3f\x00")


def test_another_sentencepiece_model_is_refused(
    rte: Path, corpus: Path, words: Vocabulary, tmp_path: Path
) -> None:
    path = save(tmp_path / "run/c.pt", make_model(301, 2), "RTE", words)
    for file in ("spm.model", "dict.txt"):
        shutil.copy(corpus / file, tmp_path / "run")
    predict(path, rte, "RTE", "-o", tmp_path / "out")
    glue_flags.flags("RTE", rte, path, ["--batch-size", "8"])
    other_model(tmp_path / "run")
    sentence = f"{rte}/RTE was not encoded with {tmp_path}/run/spm.model, which the model was trained with"
    refused(sentence, path, rte, "RTE", "-o", tmp_path / "out")
    with pytest.raises(ValueError, match="was not encoded with"):
        glue_flags.flags("RTE", rte, path, ["--batch-size", "8"])


def test_labels_of_training_and_data_are_compared(rte: Path, words: Vocabulary, tmp_path: Path) -> None:
    """A table of another order of labels would turn every prediction round."""
    path = save(tmp_path / "run/c.pt", make_model(301, 2), "RTE", words)
    text = (rte / "RTE/task.json").read_text()
    (tmp_path / "run/task.json").write_text(text)
    predict(path, rte, "RTE", "-o", tmp_path / "out")
    a, b = '"entailment"', '"not_entailment"'
    turned = text.replace(a, "?").replace(b, a).replace("?", b)
    assert turned != text
    sentence = "RTE/task.json has other labels than RTE here; prepare the task again"
    shutil.copytree(rte, tmp_path / "bin")
    (tmp_path / "bin/RTE/task.json").write_text(turned)
    refused(sentence, path, tmp_path / "bin", "RTE", "-o", "x")
    (tmp_path / "run/task.json").write_text(turned)
    refused(sentence.replace("RTE/", "run/"), path, rte, "RTE", "-o", "x")


def test_no_predictions_from_a_broken_model(rte: Path, words: Vocabulary, tmp_path: Path) -> None:
    """And what stood there before stays."""
    model = make_model(301, 2)
    with torch.no_grad():
        model.encoder.embed_tokens.weight[words.encode("import")[0]] = torch.nan
    path = save(tmp_path / "c.pt", model, "RTE", words)
    (tmp_path / "RTE.tsv").write_text("older")
    pieces = [
        [i for text in row for i in words.encode(text)] for row in raw(rte.parent / "glue/RTE/test.tsv", 1, 2)
    ]
    first = next(i for i, row in enumerate(pieces) if words.encode("import")[0] in row)
    refused(f"the model's output for row {first} is no finite number", path, rte, "RTE", "-o", tmp_path)
    assert (tmp_path / "RTE.tsv").read_text() == "older"


def test_a_file_is_complete_or_absent(tmp_path: Path) -> None:
    def lines() -> Any:
        yield "one"
        raise OSError("the disk is full")

    (tmp_path / "a.tsv").write_text("older")
    with pytest.raises(OSError, match="full"):
        write_lines(tmp_path / "a.tsv", lines())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.tsv", "older")]


# The scripts


@pytest.fixture(scope="module")
def pretrained(root: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pretrain.sh, after one update on 20 lines of ids."""
    folder = tmp_path_factory.mktemp("pretrained")
    (corpus / "bin").mkdir()
    shutil.copy(corpus / "dict.txt", corpus / "bin")
    for split in ("train", "valid"):
        with TokenFile(corpus / "bin" / split, 300) as file:
            for i in range(20):
                file.add([*range(4 + i, 24 + i), 2])
    pretrain(root, corpus, folder / "run")
    return folder / "run"


FLAGS = ("--batch-size", "2", "--num-workers", "0", "--lr", "1e-3")
SHAPE = (
    "--max-update",
    "1",
    "--tokens-per-sample",
    "64",
    "--encoder-layers",
    "1",
    "--encoder-embed-dim",
    "16",
)


def pretrain(root: Path, corpus: object, save_dir: Path, command: Callable = run, **environment: str) -> Any:
    script = ("bash", root / "scripts/pretrain.sh", corpus, save_dir, *FLAGS, *SHAPE)
    return command(*script, cwd=save_dir.parent, ARCH="tupe_r_tiny", OMP_NUM_THREADS="1", **environment)


def finetune(
    root: Path, glue_bin: Path, start: Path, save_dir: Path, command: Callable = run, **env: str
) -> Any:
    script = (
        "bash",
        root / "scripts/finetune_glue.sh",
        "RTE",
        glue_bin,
        start / "checkpoint_last.pt",
        save_dir,
    )
    return command(*script, *FLAGS, "--max-epoch", "1", cwd=save_dir.parent, OMP_NUM_THREADS="1", **env)


@pytest.mark.slow
def test_a_folder_of_finetuning_holds_all_that_prediction_needs(
    root: Path, rte: Path, corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    """Moved elsewhere, without GLUE_BIN and corpus: the same predictions, from raw files."""
    shutil.copytree(rte, tmp_path / "bin")
    finetune(root, tmp_path / "bin", pretrained, tmp_path / "run")
    for file in ("task.json", "dict.txt", "spm.model"):
        assert (tmp_path / "run" / file).read_bytes() == (rte / "RTE" / file).read_bytes()
    assert [path.name for path in (tmp_path / "run").glob(".*")] == [".lock"], "no temporary file stays"
    predict(tmp_path / "run/checkpoint_best.pt", tmp_path / "bin", "RTE", "-o", tmp_path / "out")
    (tmp_path / "run").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "bin")
    predict(tmp_path / "moved", rte.parent / "glue", "RTE", "-o", tmp_path / "again")
    assert len(read(tmp_path / "again/RTE.tsv")) == 24
    assert read(tmp_path / "again/RTE.tsv") == read(tmp_path / "out/RTE.tsv")


@pytest.mark.slow
def test_save_dirs_of_other_data_are_refused(
    root: Path, rte: Path, corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    for file in ("dict.txt", "spm.model"):
        assert (pretrained / file).read_bytes() == (corpus / file).read_bytes()

    finetune(root, rte, pretrained, tmp_path / "dry", DRY_RUN="1")
    pretrain(root, corpus, tmp_path / "dry", DRY_RUN="1")
    assert not (tmp_path / "dry").exists()

    (tmp_path / "run").mkdir()
    (tmp_path / "run/task.json").write_text("{}")
    failed = finetune(root, rte, pretrained, tmp_path / "run", attempt)
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1] == (
        f"finetune_glue: {tmp_path}/run/task.json differs from {rte}/RTE/task.json: "
        "these are checkpoints of other data; name another SAVE_DIR"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["task.json"]

    shutil.copytree(corpus, tmp_path / "other")
    other_model(tmp_path / "other")
    failed = pretrain(root, tmp_path / "other", pretrained, attempt)
    assert failed.returncode == 1
    assert f"{pretrained}/spm.model differs from {tmp_path}/other/spm.model" in failed.stdout.splitlines()[-1]

    prepare(TASKS["RTE"], rte.parent / "glue", tmp_path / "other", tmp_path / "bin")
    failed = finetune(root, tmp_path / "bin", pretrained, tmp_path / "fresh", attempt)
    assert failed.returncode == 1
    assert f"{tmp_path}/bin/RTE was not encoded with {pretrained}/spm.model" in failed.stdout.splitlines()[-1]
    assert not (tmp_path / "fresh").exists()


@pytest.mark.slow
def test_corpora_of_one_vocabulary_share_a_save_dir(
    root: Path, corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    """Their dict.txt differ in the counts alone; of several folders the first one's is kept."""
    shutil.copytree(corpus, tmp_path / "other")
    lines = (corpus / "dict.txt").read_text(encoding="utf-8").splitlines()
    counted = "".join(f"{line.rpartition(' ')[0]} 7\n" for line in lines)
    (tmp_path / "other/dict.txt").write_text(counted, encoding="utf-8")
    shutil.copytree(pretrained, tmp_path / "run")
    pretrain(root, f"{tmp_path}/other:{corpus}", tmp_path / "run")
    assert (tmp_path / "run/dict.txt").read_bytes() == (corpus / "dict.txt").read_bytes()
    (tmp_path / "other/spm.model").unlink()
    said = pretrain(root, f"{tmp_path}/other:{corpus}", tmp_path / "fresh")
    assert f"note: no {tmp_path}/other/spm.model, so {tmp_path}/fresh will not have it" in said
    assert (tmp_path / "fresh/dict.txt").read_text(encoding="utf-8") == counted
