"""The sentence prediction task and its criterion: rows, labels, loss, metrics, and runs of fairseq-train."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tiny_glue
import torch
import torch.nn.functional as F
from commands import attempt
from fairseq.data import FairseqDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.logging import metrics
from fairseq.logging.progress_bar import format_stat
from omegaconf import OmegaConf
from torch import Tensor, nn

from tupe_fairseq import checkpoints, sentence_rows
from tupe_fairseq.config import TupeConfig
from tupe_fairseq.glue import TASKS
from tupe_fairseq.glue_rows import read_rows
from tupe_fairseq.sentence_criterion import (
    TupeSentencePredictionCriterion,
    rows_of,
    score,
    table_of,
    why_undefined,
)
from tupe_fairseq.sentence_prediction import TupeSentencePredictionConfig, TupeSentencePredictionTask
from tupe_fairseq.sentence_rows import DealtRowsDataset, SentencesDataset, fit, read_targets
from tupe_fairseq.token_file import TokenFile

BOS, PAD, EOS = 0, 1, 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_glue.make_corpus(tmp_path_factory.mktemp("corpus") / "corpus")


@pytest.fixture(scope="module")
def rte(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_glue.make_rte(tmp_path_factory.mktemp("rte"), corpus, train=40, valid=29)


@pytest.fixture(scope="module")
def stsb(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    scores = [f"{48 - 13 * i % 49}e-1" for i in range(29)]  # 4.8, 3.5, ...
    return tiny_glue.make_stsb(tmp_path_factory.mktemp("stsb"), corpus, scores)


@pytest.fixture
def tasks(rte: Path, stsb: Path) -> dict[str, Any]:
    return {"RTE": make_task(rte), "STS-B": make_task(stsb)}


@pytest.fixture(autouse=True)
def fresh_meters() -> Iterator[None]:
    metrics.reset()
    yield
    metrics.reset()


def make_task(folder: Path, **options: Any) -> TupeSentencePredictionTask:
    return TupeSentencePredictionTask.setup_task(
        TupeSentencePredictionConfig(data=str(folder), seed=1, **options)
    )


class Rows(FairseqDataset):
    """Sentences that end in </s>, in memory."""

    def __init__(self, *rows: list[int]) -> None:
        self.rows = [torch.tensor([*row, EOS]) for row in rows]
        self.sizes = np.array([len(row) for row in self.rows])

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


# Rows


def joined(longest: int, *sentences: list[int]) -> list[int]:
    return SentencesDataset([Rows(row) for row in sentences], longest)[0].tolist()


def test_sentences_are_joined() -> None:
    assert joined(9, [5, 6]) == [0, 5, 6, 2]
    assert joined(9, [5, 6], [7]) == [0, 5, 6, 2, 2, 7, 2]
    assert joined(9, [], []) == [0, 2, 2, 2]


@pytest.mark.parametrize(
    ("longest", "sentences", "expected"),
    [
        (4, ([5, 6],), [0, 5, 6, 2]),  # fits exactly
        (3, ([5, 6],), [0, 5, 2]),
        (9, ([5, 6, 7], [8, 9]), [0, 5, 6, 7, 2, 2, 8, 9, 2]),  # fits exactly
        (8, ([5, 6, 7], [8, 9]), [0, 5, 6, 2, 2, 8, 9, 2]),  # the longer one, though it comes first
        (8, ([5, 6], [7, 8, 9]), [0, 5, 6, 2, 2, 7, 8, 2]),
        (7, ([5, 6], [7, 8, 9]), [0, 5, 6, 2, 2, 7, 2]),  # equal after one token: then the second
        (6, ([5, 6, 7], [8, 9]), [0, 5, 2, 2, 8, 2]),
        (8, ([5, 6, 7, 8, 9], [4]), [0, 5, 6, 7, 2, 2, 4, 2]),  # the short one stays
    ],
)
def test_truncation_by_hand(longest: int, sentences: tuple[list[int], ...], expected: list[int]) -> None:
    dataset = SentencesDataset([Rows(row) for row in sentences], longest)
    assert dataset[0].tolist() == expected
    assert dataset.sizes.tolist() == [len(expected)]
    whole = sum(map(len, sentences)) + 2 * len(sentences)
    assert dataset.cut == (whole > longest)


def test_truncation_is_the_loop() -> None:
    """Against the definition: one token at a time from the longer sentence, from the second of equal ones."""
    for first, second, room in itertools.product(range(1, 9), range(1, 9), range(4, 18)):
        kept = [first, second]
        while sum(kept) > room:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        assert [int(n[0]) for n in fit([np.array([first]), np.array([second])], room)] == kept


def test_rows_of_files(rte: Path) -> None:
    task = make_task(rte)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    first, second = (MMapIndexedDataset(str(rte / f"input{i}" / "valid")) for i in (0, 1))
    batch = dataset.collater([dataset[4], dataset[2]])
    assert batch["id"].tolist() == [4, 2]
    for row, number in enumerate((4, 2)):
        expected = [BOS, *first[number].tolist(), EOS, *second[number].tolist()]
        tokens = batch["net_input"]["src_tokens"][row].tolist()
        assert tokens[: len(expected)] == expected
        assert set(tokens[len(expected) :]) <= {PAD}
        assert batch["net_input"]["src_lengths"][row] == len(expected)
    assert batch["nsentences"] == 2
    assert batch["ntokens"] == batch["net_input"]["src_lengths"].sum()
    # RTE_LABELS begins not_entailment, entailment, entailment
    assert batch["target"].tolist() == [0, 0] and dataset[3]["target"] == 1


def test_long_rows_are_cut(tmp_path: Path, corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_glue.make_rte(tmp_path, corpus, valid=10, words=12)
    whole = make_task(folder)
    whole.load_dataset("valid")
    lengths = whole.dataset("valid").dataset.sizes[0]
    longest = int(np.sort(lengths)[-4])
    task = make_task(folder, tokens_per_sample=longest)
    with caplog.at_level(logging.INFO):
        task.load_dataset("valid")
    over = (lengths > longest).sum()
    assert f"valid: 10 rows, {over} ({10 * over:.2f}%) cut to {longest} tokens" in caplog.text
    assert len(task.dataset("valid")) == 10
    itr = task.get_batch_iterator(task.dataset("valid"), max_sentences=3, max_positions=longest)
    ids = [i for batch in itr.next_epoch_itr(shuffle=False) for i in batch["id"].tolist()]
    assert ids == list(range(10))


def test_no_room_for_text(rte: Path) -> None:
    with pytest.raises(ValueError, match="--tokens-per-sample 5 leaves no room for text; RTE needs 6"):
        make_task(rte, tokens_per_sample=5)


@pytest.mark.parametrize("rows", [1, 5, 33, 40, 277])
def test_no_row_is_left_out(rows: int) -> None:
    """fairseq leaves out 5 of 277 rows, in batches of 32 that must be multiples of 8 (its default)."""
    sentences = SentencesDataset([Rows(*[[5]] * rows)], 9)
    for seed in (None, 1):
        dataset = DealtRowsDataset(sentences, seed)
        sentences.num_tokens = lambda index: 3
        batches = dataset.batch_by_size(dataset.ordered_indices(), None, 32, required_batch_size_multiple=8)
        assert len(batches) == math.ceil(rows / 32)
        assert sorted(np.concatenate(batches)) == list(range(rows))


def batches_of(task: TupeSentencePredictionTask, split: str, epoch: int) -> list[list[int]]:
    itr = task.get_batch_iterator(task.dataset(split), max_sentences=8, seed=1, epoch=epoch)
    return [batch["id"].tolist() for batch in itr.next_epoch_itr(shuffle=split == "train")]


def test_training_rows_are_dealt_anew_every_epoch(rte: Path) -> None:
    tasks = make_task(rte), make_task(rte)
    for task in tasks:
        task.load_dataset("train")
        task.load_dataset("valid")
    first, second = (batches_of(tasks[0], "train", epoch) for epoch in (1, 2))
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    for batches in (first, second):
        assert sorted(itertools.chain(*batches)) == list(range(40))
    assert batches_of(tasks[1], "train", 2) == second, "a resumed run deals as the first did"
    for epoch in (1, 2):
        assert list(itertools.chain(*batches_of(tasks[0], "valid", epoch))) == list(range(29))


class Lengths(FairseqDataset):
    """Rows of which nothing but the length matters."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.sizes = lengths

    def __len__(self) -> int:
        return len(self.sizes)

    def num_tokens(self, index: int) -> int:
        return self.sizes[index]


def test_rows_of_like_length_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 60 rows, sorted within; the second begins with its longest, and the rest is a third."""
    monkeypatch.setattr(sentence_rows, "GROUP", 60)
    lengths = np.random.default_rng(1).permutation(np.arange(1, 151))
    dataset = DealtRowsDataset(Lengths(lengths), shuffle_seed=1)
    orders = []
    for epoch in (1, 2):
        dataset.set_epoch(epoch)
        order = dataset.ordered_indices()
        assert sorted(order) == list(range(150))
        groups = np.split(lengths[order], [60, 120])
        assert [np.sign(np.diff(group)).tolist() for group in groups] == [[1] * 59, [-1] * 59, [1] * 29]
        orders.append(order)
    assert set(orders[0][:60]) != set(orders[1][:60]), "groups are drawn anew"
    rows = DealtRowsDataset(Lengths(lengths), shuffle_seed=None)
    assert rows.ordered_indices().tolist() == list(range(150))


def test_share_of_padding(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dataset = DealtRowsDataset(Lengths(np.array([1, 2, 4, 7])), shuffle_seed=None)
    share = dataset.padded_share([np.array([0, 1]), np.array([2, 3])])
    assert share == pytest.approx((1 + 3) / (2 * 2 + 2 * 7))
    dataset.batch_by_size(np.arange(4), max_sentences=2)
    assert caplog.messages == ["2 batches, 22.2% of them padding"]
    dataset.set_epoch(2)
    dataset.batch_by_size(np.arange(4), max_sentences=2)
    assert len(caplog.messages) == 1


def test_grouping_pads_less_of_real_rows(shared_data: Path) -> None:
    """RTE in batches of 32, by words: what is padded of shuffled rows, and of those in groups."""
    path = shared_data / "glue" / "RTE" / "train.tsv"
    pairs = [row.texts for row in read_rows(path, TASKS["RTE"], "train")]
    lengths = np.array([sum(len(text.split()) for text in pair) for pair in pairs])
    dataset = DealtRowsDataset(Lengths(lengths), shuffle_seed=1)
    shuffled = np.random.default_rng(1).permutation(len(lengths))
    shares = [
        dataset.padded_share(np.split(order, range(32, len(order), 32)))
        for order in (shuffled, dataset.ordered_indices())
    ]
    assert shares[0] > 0.5 and shares[1] < 0.25


# Labels


def labels(folder: Path, *lines: str) -> Path:
    path = folder / "valid.label"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_label_ids_are_those_of_the_table(tmp_path: Path) -> None:
    frequent = ["not_entailment"] * 5 + ["entailment"]
    assert read_targets(labels(tmp_path, *frequent), TASKS["RTE"]).tolist() == [1, 1, 1, 1, 1, 0]
    assert read_targets(labels(tmp_path, *frequent[::-1]), TASKS["RTE"]).tolist() == [0, 1, 1, 1, 1, 1]


def test_scores_are_scaled(tmp_path: Path) -> None:
    targets = read_targets(labels(tmp_path, "0.0", "2.5", "4.8", "5.000"), TASKS["STS-B"])
    assert targets.tolist() == [0.0, 0.5, 0.96, 1.0] and targets.dtype == np.float64


def test_unknown_label(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"valid\.label, line 2: label 'maybe' is none of entailment"):
        read_targets(labels(tmp_path, "entailment", "maybe"), TASKS["RTE"])


def test_half_precision_training_keeps_scores(tasks: dict) -> None:
    """fairseq's --fp16 rounds the float32 tensors of a batch and no others (Trainer._fp_convert_sample)."""
    tasks["STS-B"].load_dataset("valid")
    dataset = tasks["STS-B"].dataset("valid")
    batch = dataset.collater([dataset[0]])
    assert batch["target"].dtype == torch.float64 and batch["target"].item() == 0.96


def test_missing_and_inconsistent_files(tmp_path: Path, corpus: Path) -> None:
    folder = tiny_glue.make_rte(tmp_path, corpus)
    task = make_task(folder)
    with pytest.raises(FileNotFoundError, match=r"no .*input0/dev\.idx; scripts/prepare_glue\.sh makes it"):
        task.load_dataset("dev")
    (folder / "label/train.label").write_text("entailment\n")
    with pytest.raises(ValueError, match=r"train\.label: 1 labels, 40 rows; prepare the task again"):
        task.load_dataset("train")
    with TokenFile(folder / "input1/valid", 300) as file:
        file.add([EOS])
    with pytest.raises(ValueError, match=r"input1/valid has 1 rows, task\.json 13; prepare the task again"):
        task.load_dataset("valid")
    (folder / "dict.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*dict\.txt"):
        make_task(folder)
    with pytest.raises(FileNotFoundError, match=r"no .*task\.json; scripts/prepare_glue\.sh makes it"):
        make_task(tmp_path / "bin" / "CoLA")


# The model


def config() -> Any:
    sizes = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 8}
    cfg = TupeConfig(encoder_attention_heads=2, **sizes)
    cfg._name, cfg.max_positions = "tupe", 64
    return OmegaConf.create({"model": OmegaConf.structured(cfg)}).model


@pytest.mark.parametrize("name", ["RTE", "STS-B"])
def test_head_and_frozen_lm_head(tasks: dict, name: str) -> None:
    task = make_task(tasks[name].cfg.data, tokens_per_sample=64, classification_head_name="head")
    model = task.build_model(config())
    assert model.encoder.embed_tokens.num_embeddings == 301  # 300 pieces and <mask>
    assert task.source_dictionary.index("<mask>") == 300
    output, _ = model(torch.tensor([[BOS, 5, EOS]]), classification_head_name="head")
    assert output.shape == (1, 2 if name == "RTE" else 1)
    output.sum().backward()
    for key, parameter in model.named_parameters():
        assert (parameter.grad is None) == key.startswith("lm_head."), key
        assert parameter.requires_grad != key.startswith("lm_head."), key


def test_a_model_of_another_task_is_not_validated(tasks: dict) -> None:
    own = tasks["RTE"].state_dict()
    assert own["glue_task"] == "RTE"
    tasks["RTE"].load_state_dict(own)
    tasks["RTE"].load_state_dict({**own, "glue_task": None})
    with pytest.raises(ValueError, match=r"the checkpoint was fine-tuned on CoLA, and .*/RTE is of RTE"):
        tasks["RTE"].load_state_dict({**own, "glue_task": "CoLA"})


def test_metrics_that_may_choose_the_checkpoint(tasks: dict, rte: Path, stsb: Path) -> None:
    assert tasks["RTE"].metric_names() == {
        "tupe_sentence_prediction": ("loss", "accuracy", "batch_mean_accuracy")
    }
    names = tasks["STS-B"].metric_names()["tupe_sentence_prediction"]
    assert names[:3] == ("loss", "pearson", "spearman") and "batch_mean_spearman" in names


def test_rows_longer_than_the_model(rte: Path) -> None:
    with pytest.raises(ValueError, match=r"--tokens-per-sample 65 .*--max-positions 64"):
        make_task(rte, tokens_per_sample=65).build_model(config())


# Loss


class Answers(nn.Module):
    """A model whose answers are known: row `id` gets outputs[id]; the row's first token tells the id."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, classification_head_name: str) -> tuple:
        assert classification_head_name == "sentence_classification_head"
        return self.outputs[src_tokens[:, 0]], {}


def sample(targets: Tensor, ids: list[int] | None = None) -> dict[str, Any]:
    ids = list(range(len(targets))) if ids is None else ids
    return {
        "id": torch.tensor(ids),
        "net_input": {"src_tokens": torch.tensor(ids)[:, None], "src_lengths": torch.ones(len(ids))},
        "target": targets[ids],
        "nsentences": len(ids),
        "ntokens": 4 * len(ids),
        "split_rows": len(targets),
    }


def test_cross_entropy_by_hand(tasks: dict) -> None:
    criterion = TupeSentencePredictionCriterion(tasks["RTE"])
    model = Answers(torch.tensor([[math.log(3), 0.0], [0.0, 0.0]]))  # probabilities 3/4, 1/4 and 1/2, 1/2
    loss, rows, log = criterion(model, sample(torch.tensor([1, 0])))
    assert rows == log["sample_size"] == log["nsentences"] == 2 and log["ntokens"] == 8
    assert loss.item() == pytest.approx(math.log(4) + math.log(2), rel=1e-6)  # a sum, in nats
    assert log["loss"].item() == pytest.approx(2 + 1, rel=1e-6)  # bits
    criterion.reduce_metrics([log, log])
    assert metrics.get_smoothed_value("default", "loss") == 1.5  # bits per row
    loss.backward()
    torch.testing.assert_close(model.outputs.grad, torch.tensor([[0.75, -0.75], [-0.5, 0.5]]))


def test_squared_error_by_hand(tasks: dict) -> None:
    criterion = TupeSentencePredictionCriterion(tasks["STS-B"])
    model = Answers(torch.tensor([[0.5], [2.0]]))
    loss, rows, log = criterion(model, sample(torch.tensor([0.0, 1.0], dtype=torch.float64)))
    assert rows == 2 and loss.item() == log["loss"].item() == 0.25 + 1
    loss.backward()
    assert model.outputs.grad.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["RTE", "STS-B"])
def test_precision_of_the_loss(tasks: dict, name: str, dtype: torch.dtype) -> None:
    """Never below float32, and float64 for a float64 model."""
    criterion = TupeSentencePredictionCriterion(tasks[name])
    outputs = torch.randn(50, 2 if name == "RTE" else 1, generator=torch.Generator().manual_seed(1)).to(dtype)
    if name == "RTE":
        targets = torch.arange(50) % 2
        expected = -outputs.double().log_softmax(-1)[torch.arange(50), targets].sum()
    else:
        targets = torch.linspace(0, 1, 50, dtype=torch.float64)
        expected = ((outputs.double()[:, 0] - targets) ** 2).sum()
    loss, _, _ = criterion(Answers(outputs), sample(targets))
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-13 if dtype == torch.float64 else 1e-6)


def test_rows_without_labels_cannot_be_scored(tasks: dict) -> None:
    batch = sample(torch.tensor([1, 0]))
    del batch["target"]
    with pytest.raises(ValueError, match="these rows have no labels"):
        TupeSentencePredictionCriterion(tasks["RTE"])(Answers(torch.zeros(2, 2)), batch)


# Metrics


def test_scores_by_hand() -> None:
    # 3 true positives, 1 false positive, 2 false negatives, 4 true negatives
    targets = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    predictions = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    found = score(["accuracy", "f1", "mcc"], predictions, targets)
    assert found["accuracy"] == pytest.approx(7 / 10)
    assert found["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert found["mcc"] == pytest.approx((3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))
    # 1 2 3 4 against 1 3 2 4: covariance 4, both variances 5
    assert score(["pearson", "spearman"], np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == {
        "pearson": pytest.approx(0.8),
        "spearman": pytest.approx(0.8),
    }
    ranks_alone = score(["spearman"], np.array([1.0, 2, 3, 90]), np.array([1.0, 3, 2, 4]))
    assert ranks_alone == {"spearman": pytest.approx(0.8)}


def test_constant_predictions_count_as_zero_without_warnings() -> None:
    ones, both = np.ones(4), np.array([0.0, 1, 1, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for predictions, targets in ((ones, both), (both, ones), (ones, ones), (ones[:1], ones[:1])):
            found = score(["mcc", "pearson", "spearman"], predictions, targets)
            assert found == {"mcc": 0.0, "pearson": 0.0, "spearman": 0.0}
        assert score(["accuracy", "f1"], 1 - ones, 1 - ones) == {"accuracy": 1.0, "f1": 0.0}
        assert score(["accuracy", "f1"], ones, both) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_f1_is_of_label_1_however_frequent(tmp_path: Path, share: float) -> None:
    """In MRPC, as scikit-learn has it for the strings in the file; a shuffled file has the same ids."""
    generator = np.random.default_rng(1)
    names = np.where(generator.uniform(size=200) < share, "1", "0")
    guesses = np.where(generator.uniform(size=200) < 0.8, names, "1")
    order = generator.permutation(200)
    for rows in (np.arange(200), order):
        targets = read_targets(labels(tmp_path, *names[rows]), TASKS["MRPC"])
        predictions = read_targets(labels(tmp_path, *guesses[rows]), TASKS["MRPC"])
        assert targets.tolist() == [int(name) for name in names[rows]]
        expected = sklearn.metrics.f1_score(names, guesses, pos_label="1")
        assert score(["f1"], predictions, targets)["f1"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["cls_tupe_a", "cls_tupe_r", "reg_tupe_a", "reg_tupe_r"])
@pytest.mark.parametrize("rows_in_batch", [8, 12, 40])
def test_loss_and_metrics_of_the_authors_code(
    shared_data: Path, tasks: dict, name: str, rows_in_batch: int
) -> None:
    """Its criterion on all rows at once, and its means over batches; its logits and labels, float64."""
    golden = np.load(shared_data / "golden" / "trajectories" / f"finetune_{name}.npz", allow_pickle=False)
    prefix = "expected/f64/valid/whole/"
    regression = name.startswith("reg")
    names = ["pearson", "spearman", "pearson_spearman"] if regression else ["accuracy", "f1", "mcc", "acc_f1"]
    criterion = TupeSentencePredictionCriterion(tasks["STS-B" if regression else "RTE"]).eval()
    targets = torch.from_numpy(golden["input/valid/label"])
    targets = targets.double() if regression else targets
    found = evaluate(criterion, names, torch.from_numpy(golden[prefix + "logits"]), targets, rows_in_batch)
    for metric in names:
        assert found[metric] == pytest.approx(float(golden[prefix + metric]), abs=1e-10)
        if rows_in_batch < 40:
            mean = golden[f"expected/f64/valid/bs{rows_in_batch}/official_validate/{metric}"]
            assert found[f"batch_mean_{metric}"] == pytest.approx(float(mean), abs=1e-10)
    bits = float(golden[prefix + "loss"])  # the authors log bits for regression, too
    assert found["loss"] == pytest.approx(bits * math.log(2) if regression else bits, abs=6e-5)  # 4 digits


def evaluate(
    criterion: TupeSentencePredictionCriterion,
    names: list[str],
    outputs: Tensor,
    targets: Tensor,
    rows_in_batch: int,
    workers: int = 1,
) -> dict[str, float]:
    """A validation as fairseq's: batches are dealt to workers, whose numbers are summed at each step.

    A worker without a batch computes one again, and its numbers count as zeros.
    """
    task = criterion.task
    task.prepared = replace(task.prepared, task=replace(task.prepared.task, metrics=tuple(names)))
    rows = range(len(targets))
    batches = [list(rows[i : i + rows_in_batch]) for i in rows[::rows_in_batch]]
    model = Answers(outputs)
    with metrics.aggregate(new_root=True) as agg, torch.no_grad():
        for step in range(0, len(batches), workers):
            logs = []
            for worker in range(workers):
                present = step + worker < len(batches)
                _, _, log = criterion(model, sample(targets, batches[step + worker if present else 0]))
                logs.append(log if present else {k: 0 * v for k, v in log.items()})
            assert criterion.logging_outputs_can_be_summed()
            with metrics.aggregate("valid"):
                task.reduce_metrics([{k: sum(log[k] for log in logs) for k in logs[0]}], criterion)
    stats = agg.get_smoothed_values()
    task.post_validate(model, stats, agg)
    return stats


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("rows_in_batch", [1, 7, 64])
def test_metrics_do_not_depend_on_batches_or_workers(tasks: dict, rows_in_batch: int, workers: int) -> None:
    generator = np.random.default_rng(1)
    labels, logits = generator.integers(0, 2, 100), generator.normal(size=(100, 2))
    logits[np.arange(100), labels] += 0.7
    criterion = TupeSentencePredictionCriterion(tasks["RTE"]).eval()
    found = evaluate(
        criterion,
        ["accuracy", "f1", "mcc"],
        torch.from_numpy(logits),
        torch.from_numpy(labels),
        *(rows_in_batch, workers),
    )
    predictions = logits.argmax(1)
    assert found["accuracy"] == sklearn.metrics.accuracy_score(labels, predictions)
    assert found["f1"] == sklearn.metrics.f1_score(labels, predictions)
    assert found["mcc"] == sklearn.metrics.matthews_corrcoef(labels, predictions)
    batches = np.split(np.arange(100), range(rows_in_batch, 100, rows_in_batch))
    accuracies = [sklearn.metrics.accuracy_score(labels[rows], predictions[rows]) for rows in batches]
    assert found["batch_mean_accuracy"] == pytest.approx(np.mean(accuracies), rel=1e-12)
    assert "_rows" not in found

    scores, guesses = generator.uniform(size=100), generator.normal(size=(100, 1))
    criterion = TupeSentencePredictionCriterion(tasks["STS-B"]).eval()
    found = evaluate(
        criterion,
        ["pearson", "spearman"],
        torch.from_numpy(guesses),
        torch.from_numpy(scores),
        *(rows_in_batch, workers),
    )
    assert found["pearson"] == scipy.stats.pearsonr(guesses[:, 0], scores)[0]
    assert found["spearman"] == scipy.stats.spearmanr(guesses[:, 0], scores)[0]


def test_validations_do_not_pile_up(tasks: dict) -> None:
    """fairseq keeps the meters "valid" of a run, and saves them."""
    criterion = TupeSentencePredictionCriterion(tasks["RTE"]).eval()
    targets = torch.tensor([0, 1, 1, 0])
    right = torch.eye(2)[targets]
    first = evaluate(criterion, ["accuracy"], right, targets, 3)
    second = evaluate(criterion, ["accuracy"], 1 - right, targets, 3)
    assert (first["accuracy"], second["accuracy"]) == (1.0, 0.0)
    saved = {key: state for _, key, _, state in metrics.get_meters("valid").state_dict()}
    assert saved["_rows"]["sum"] == 0
    # another split, with another number of rows
    assert evaluate(criterion, ["accuracy"], right[:2], targets[:2], 1)["accuracy"] == 1.0


def test_constant_predictions_are_told_once(tasks: dict, caplog: pytest.LogCaptureFixture) -> None:
    criterion = TupeSentencePredictionCriterion(tasks["RTE"]).eval()
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate(criterion, ["mcc"], torch.tensor([[0.0, 1.0]] * 6), torch.tensor([0, 1] * 3), 2)
    assert found["mcc"] == 0.0
    assert [r.getMessage() for r in caplog.records] == [
        "all predictions are 1, so mcc is undefined; it counts as 0"
    ]


def test_training_logs_no_rows(tasks: dict) -> None:
    criterion = TupeSentencePredictionCriterion(tasks["RTE"])
    _, _, log = criterion(Answers(torch.eye(2)), sample(torch.tensor([0, 1])))
    assert log.keys() == {"loss", "ntokens", "nsentences", "sample_size"}


# fairseq-train, through the scripts


def run(root: Path, name: str, *arguments: object, **environment: str) -> str:
    """Runs a script; returns what it printed, and fails with that if it fails."""
    done = subprocess.run(
        ["bash", root / "scripts" / name, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def value(log: str, name: str) -> list[str]:
    """The values of a metric of the validations in a log, as printed."""
    return re.findall(rf"'valid' subset .*\| {name} (\S+)", log)


@pytest.fixture(scope="module")
def pretrained(root: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two updates of masked language modelling."""
    folder = tmp_path_factory.mktemp("pretrained")
    (corpus / "bin").mkdir()
    (corpus / "bin/dict.txt").write_bytes((corpus / "dict.txt").read_bytes())
    for split in ("train", "valid"):
        with TokenFile(corpus / "bin" / split, 300) as file:
            for i in range(64):
                file.add([*range(4 + i, 24 + i), EOS])
    flags = [
        "--batch-size",
        16,
        "--max-update",
        2,
        "--tokens-per-sample",
        64,
        "--encoder-layers",
        1,
        "--encoder-embed-dim",
        16,
    ]
    run(root, "pretrain.sh", corpus, folder, *flags, ARCH="tupe_r_tiny")
    return folder / "checkpoint_last.pt"


@pytest.mark.slow
def test_finetuning(tmp_path: Path, root: Path, rte: Path, pretrained: Path) -> None:
    save = tmp_path / "save"
    arguments = ["RTE", rte.parent, pretrained, save, "--batch-size", 16, "--lr", "1e-3", "--log-interval", 1]
    log = run(root, "finetune_glue.sh", *arguments, "--max-epoch", 2)
    assert f"loading pretrained model from {pretrained}" in log
    assert len(value(log, "accuracy")) == 2
    assert "num_updates 6 |" in log  # 40 rows: 3 batches an epoch
    best = checkpoints.load(save / "checkpoint_best.pt")
    assert best["extra_state"]["best"] == pytest.approx(max(map(float, value(log, "accuracy"))), rel=1e-5)

    start, end = checkpoints.load(pretrained)["model"], checkpoints.load(save / "checkpoint_last.pt")["model"]
    for key in start:
        assert torch.equal(start[key], end[key]) == key.startswith("lm_head."), key

    for path in save.glob("*.pt"):
        assert torch.serialization.get_unsafe_globals_in_checkpoint(path) == []
        meters = dict(checkpoints.load(path)["extra_state"]["metrics"])
        assert {key: state["sum"] for _, key, _, state in meters["valid"] if key == "_rows"} == {"_rows": 0}

    again = run(root, "finetune_glue.sh", *arguments, "--max-epoch", 3)
    assert f"Loaded checkpoint {save}/checkpoint_last.pt (epoch 3 @ 6 updates)" in again
    assert len(value(again, "accuracy")) == 1 and "num_updates 9 |" in again


@pytest.mark.slow
def test_both_dev_sets_of_mnli(tmp_path: Path, root: Path, corpus: Path, pretrained: Path) -> None:
    """Reported apart, in every validation; the matched one chooses the checkpoint."""
    glue_bin = tiny_glue.make_mnli(tmp_path, corpus, matched=13, mismatched=29).parent
    arguments = ["MNLI", glue_bin, pretrained, tmp_path / "save", "--batch-size", 16, "--lr", "1e-2"]
    log = run(root, "finetune_glue.sh", *arguments, "--max-epoch", 3)
    matched = value(log, "accuracy")
    mismatched = re.findall(r"'valid1' subset .*\| accuracy (\S+)", log)
    assert len(matched) == len(mismatched) == 3
    for values, rows in ((matched, 13), (mismatched, 29)):
        for accuracy in map(float, values):
            assert round(accuracy * rows) / rows == pytest.approx(accuracy, abs=1e-4)
    best = checkpoints.load(tmp_path / "save" / "checkpoint_best.pt")["extra_state"]["best"]
    assert best == pytest.approx(max(map(float, matched)), abs=1e-4)
    unknown = ["--best-checkpoint-metric", "mcc"]
    failed = attempt("bash", root / "scripts/finetune_glue.sh", *arguments[:3], tmp_path, *unknown, cwd=root)
    sentence = "--best-checkpoint-metric mcc is not reported; there are loss, accuracy, batch_mean_accuracy"
    assert failed.returncode == 1 and sentence in failed.stdout.splitlines()[-1]


@pytest.mark.slow
def test_workers_report_all_rows(tmp_path: Path, root: Path, stsb: Path, pretrained: Path) -> None:
    """29 rows in 3 batches: one of 2 processes has no batch in the second round. Against SciPy."""
    flags = ["--batch-size", 12, "--max-update", 2, "--lr", "1e-3"]
    log = run(root, "finetune_glue.sh", "STS-B", stsb.parent, pretrained, tmp_path, *flags, NPROC="2")

    state = checkpoints.load(tmp_path / "checkpoint_last.pt")
    task = make_task(stsb, tokens_per_sample=64)
    model = task.build_model(OmegaConf.create({"model": state["cfg"]["model"]}).model).eval()
    model.load_state_dict(state["model"])
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    batch = dataset.collater([dataset[i] for i in range(29)])
    with torch.no_grad():
        tokens, head = batch["net_input"]["src_tokens"], "sentence_classification_head"
        predictions = model(tokens, classification_head_name=head)[0][:, 0].double()  # (29,)
    targets = batch["target"]
    for name, function in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        expected = function(predictions.numpy(), targets.numpy())[0]
        assert float(value(log, name)[-1]) == pytest.approx(expected, abs=1e-4)
    assert float(value(log, "loss")[-1]) == pytest.approx(F.mse_loss(predictions, targets).item(), abs=1e-4)


def test_predictions_that_are_no_numbers_count_as_uncorrelated() -> None:
    predictions, targets = np.array([1.0, np.nan, 2.0]), np.array([1.0, 2.0, 3.0])
    assert score(["pearson", "spearman"], predictions, targets) == {"pearson": 0.0, "spearman": 0.0}
    assert why_undefined(predictions, targets) == "not all predictions are finite numbers"
    assert why_undefined(targets, targets) is None


def test_a_table_of_rows_shows_their_number_only() -> None:
    """fairseq-validate prints what a batch logs."""
    ids = torch.tensor([5, 0])
    table = table_of(ids, torch.tensor([1, 0]), torch.tensor([1, 1]), rows=9872)
    assert format_stat(table) == "2 rows"
    assert type(table) is not Tensor
    assert type(sum([table, table])) is Tensor, "sums get into fairseq's meters, and those into checkpoints"
    assert type(torch.cat([table, table])) is Tensor
    predictions, targets = rows_of(table)
    assert (predictions.tolist(), targets.tolist()) == ([0, 1], [1, 1])
