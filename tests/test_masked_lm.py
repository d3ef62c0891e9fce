"""The masked LM task: blocks, masks, splits, in all break modes."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from tupe_fairseq.blocks import SplitLinesDataset, word_starts
from tupe_fairseq.masked_lm import TupeMaskedLMConfig, TupeMaskedLMTask
from tupe_fairseq.token_file import TokenFile

BOS, PAD, EOS, VOCAB = 0, 1, 2, 200
MASK = VOCAB  # appended by the task
LENGTHS = [5, 3, 30, 1, 9, 64, 2, 1, 12, 7, 4, 40]  # </s> included; 1 is a lone </s>, between documents


class Rows(torch.utils.data.Dataset):
    """Rows of consecutive numbers, so that every token tells where it came from."""

    def __init__(self, lengths: list[int]) -> None:
        self.sizes = np.array(lengths)
        ends = np.cumsum(lengths)
        self.rows = [torch.arange(end - length, end) for end, length in zip(ends, lengths)]

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of random ids, pieces a0 ▁a1 a2 ▁a3 ...: even ones go on with a word."""
    folder = tmp_path_factory.mktemp("bin")
    pieces = [f"{'▁' if i % 2 else ''}a{i}" for i in range(VOCAB - 4)]
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    rng = np.random.default_rng(0)
    for split, repeat in (("train", 20), ("valid", 10)):
        with TokenFile(folder / split, VOCAB) as file:
            for length in LENGTHS * repeat:
                file.add([*rng.integers(4, VOCAB, length - 1).tolist(), EOS])
    return folder


def make_task(data: Path, **options: object) -> TupeMaskedLMTask:
    cfg = TupeMaskedLMConfig(data=str(data), seed=1, tokens_per_sample=16)
    for name, value in options.items():
        setattr(cfg, name, value)
    return TupeMaskedLMTask.setup_task(cfg)


def samples(task: TupeMaskedLMTask, split: str, epoch: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Input and target of every block, in order."""
    task.load_dataset(split)
    dataset = task.dataset(split)
    dataset.set_epoch(epoch)
    batch = dataset.collater([dataset[i] for i in range(len(dataset))])
    lengths = batch["net_input"]["src_lengths"].tolist()
    rows = zip(batch["net_input"]["src_tokens"], batch["target"], lengths)
    return [(tokens[:n], target[:n]) for tokens, target, n in rows]


def originals(task: TupeMaskedLMTask, split: str) -> list[list[int]]:
    """The blocks as they were before masking."""
    return [torch.where(target != PAD, target, tokens).tolist() for tokens, target in samples(task, split)]


@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc", "eos"])
def test_every_mode_keeps_all_text_with_bos_first(data: Path, mode: str) -> None:
    blocks = originals(make_task(data, sample_break_mode=mode), "valid")
    assert all(block[0] == BOS for block in blocks)
    assert max(map(len, blocks)) <= 16
    rng = np.random.default_rng(0)
    rng.integers(4, VOCAB, sum(n - 1 for n in LENGTHS * 20))  # those of train come first
    lines = [rng.integers(4, VOCAB, n - 1).tolist() for n in LENGTHS * 10]
    text = sorted(token for line in lines for token in line)
    assert sorted(token for block in blocks for token in block[1:] if token != EOS) == text


def test_modes_differ_as_fairseq_says(data: Path) -> None:
    by_mode = {
        mode: originals(make_task(data, sample_break_mode=mode), "valid")
        for mode in ("none", "complete", "complete_doc", "eos")
    }
    assert sum(len(b) == 16 for b in by_mode["none"]) >= len(by_mode["none"]) - 1, "all full but the last"
    assert all(block.count(EOS) <= 1 for block in by_mode["eos"]), "a line each"
    assert [BOS, EOS] not in by_mode["eos"], "the lone </s> between documents is no line"
    # 5 + 3 go together, the 30 are split into 2 x 15, the lone </s> and 9 go together, 64 are split into 5
    complete = [b for b in by_mode["complete"] if len(b) == 9]
    assert complete, "5 + 3 and <s>"
    assert by_mode["complete"] != by_mode["complete_doc"]


def test_long_lines_are_split_evenly_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rows = Rows([4, 11, 1, 10, 21])
    split = SplitLinesDataset(rows, longest=10)
    pieces = [split[i].tolist() for i in range(len(split))]
    assert [len(piece) for piece in pieces] == [4, 5, 6, 1, 10, 7, 7, 7]
    assert split.sizes.tolist() == [4, 5, 6, 1, 10, 7, 7, 7]
    assert [token for piece in pieces for token in piece] == list(range(47))
    # 2 of 5 lines; 32 of 47 tokens
    assert "2 of 5 lines (40.00%, with 68.09% of the tokens) exceed the 10 tokens" in caplog.text
    assert "split into 5 pieces" in caplog.text
    without = SplitLinesDataset(rows, longest=10, drop_separators=True)
    assert [len(without[i]) for i in range(len(without))] == [4, 5, 6, 10, 7, 7, 7]


def test_bos_is_never_masked(data: Path) -> None:
    task = make_task(data, mask_prob=0.5)
    for tokens, target in samples(task, "train"):
        assert tokens[0] == BOS
        assert target[0] == PAD


def test_masks_are_bert_masks(data: Path) -> None:
    rows = [torch.stack(pair, dim=1)[1:] for pair in samples(make_task(data), "train")]
    tokens, target = torch.cat(rows).unbind(dim=1)
    chosen = target != PAD
    masked, kept = tokens[chosen] == MASK, tokens[chosen] == target[chosen]
    n = chosen.numel()
    assert abs(chosen.sum().item() / n - 0.15) < 5 * (0.15 * 0.85 / n) ** 0.5 + 0.01  # rounded a block
    k = chosen.sum().item()
    assert abs(masked.sum().item() / k - 0.8) < 5 * (0.8 * 0.2 / k) ** 0.5
    assert abs(kept.sum().item() / k - 0.1) < 5 * (0.1 * 0.9 / k) ** 0.5 + 1 / VOCAB
    assert (tokens[~chosen] != MASK).all()


def shares(task: TupeMaskedLMTask) -> tuple[int, int, list[float]]:
    """Tokens, those of them that were chosen, and the shares of these masked, left and replaced."""
    rows = [torch.stack(pair, dim=1)[1:] for pair in samples(task, "train")]
    tokens, target = torch.cat(rows).unbind(dim=1)
    chosen = target != PAD
    masked, kept = tokens[chosen] == MASK, tokens[chosen] == target[chosen]
    parts = [part.double().mean().item() for part in (masked, kept, ~masked & ~kept)]
    return chosen.numel(), int(chosen.sum()), parts


@pytest.mark.parametrize("mask_prob, leave, replace", [(0.5, 0.3, 0.0), (0.5, 0.0, 0.3), (0.3, 0.2, 0.4)])
def test_each_share_is_that_of_its_option(data: Path, mask_prob: float, leave: float, replace: float) -> None:
    options = {"mask_prob": mask_prob, "leave_unmasked_prob": leave, "random_token_prob": replace}
    n, k, parts = shares(make_task(data, **options))
    assert abs(k / n - mask_prob) < 5 * (mask_prob * (1 - mask_prob) / n) ** 0.5
    # a replacement is the token itself, or <mask>, once in about 200 times
    for actual, expected in zip(parts, (1 - leave - replace, leave, replace)):
        assert abs(actual - expected) <= 5 * (expected * (1 - expected) / k) ** 0.5 + 2 * replace / VOCAB


def test_another_seed_gives_other_masks(data: Path) -> None:
    one, again, two = (
        [target.tolist() for _, target in samples(make_task(data, seed=seed, mask_prob=0.5), "train")]
        for seed in (1, 1, 2)
    )
    assert one == again
    assert sum(a == b for a, b in zip(one, two)) < 0.2 * len(one)


def test_replacements_are_drawn_by_frequency_when_asked(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data, tmp_path / "bin")
    lines = [line.split()[0] for line in (folder / "dict.txt").read_text(encoding="utf-8").splitlines()]
    counts = {6: 3000, 96: 1000}  # of the pieces of ids 10 and 100; the others never occur
    text = "".join(f"{piece} {counts.get(i, 0)}\n" for i, piece in enumerate(lines))
    (folder / "dict.txt").write_text(text, encoding="utf-8")

    def drawn(**options: bool) -> torch.Tensor:
        task = make_task(folder, mask_prob=0.5, leave_unmasked_prob=0.0, random_token_prob=1.0, **options)
        return torch.cat([tokens[target != PAD] for tokens, target in samples(task, "train")])

    weighted, uniform = drawn(freq_weighted_replacement=True), drawn()
    rare = (weighted != 10) & (weighted != 100)
    assert (weighted[rare] == MASK).all(), "<mask> counts as one occurrence"
    assert rare.sum() < 10, "1 in 4,001"
    assert abs((weighted == 10).double().mean() - 0.75) < 5 * (0.75 * 0.25 / len(weighted)) ** 0.5
    assert len(uniform.unique()) == VOCAB + 1 - 4, "all but the special ones"


@pytest.mark.parametrize("workers", [0, 1])
def test_validation_masks_stay_and_training_masks_change(data: Path, workers: int) -> None:
    """Through fairseq's own iterators, since data workers that outlive an epoch would keep its masks."""
    task = make_task(data)

    def epochs(split: str, **as_fairseq: bool) -> list[set[tuple[int, ...]]]:
        task.load_dataset(split)
        iterator = task.get_batch_iterator(task.dataset(split), max_sentences=8, num_workers=workers)
        seen = []
        for _ in range(3):
            batches = iterator.next_epoch_itr(**as_fairseq)
            seen.append({tuple(row) for batch in batches for row in batch["target"].tolist()})
        return seen

    train = epochs("train")
    assert train[0] != train[1] != train[2] != train[0]
    assert len(train[0] & train[1]) < 0.1 * len(train[0])
    valid = epochs("valid", shuffle=False, set_dataset_epoch=False)
    assert valid[0] == valid[1] == valid[2]


def test_no_row_is_left_out_of_the_batches(data: Path) -> None:
    task = make_task(data)
    task.load_dataset("valid")
    rows = len(task.dataset("valid"))
    assert rows % 8, "fairseq would leave some out"
    iterator = task.get_batch_iterator(
        task.dataset("valid"), max_sentences=16, required_batch_size_multiple=8
    )
    assert sum(batch["nsentences"] for batch in iterator.next_epoch_itr(shuffle=False)) == rows


def test_whole_words_are_masked_whole(data: Path) -> None:
    task = make_task(data, mask_whole_words=True, sample_break_mode="none")
    starts = word_starts(task.source_dictionary)
    share = []
    for tokens, target in samples(task, "train"):
        chosen = target[1:] != PAD
        share.append(chosen.double().mean())
        original = torch.where(target != PAD, target, tokens)[1:]
        inside = starts[original[1:]] == 0  # goes on with the word of the token before
        assert (chosen[1:] == chosen[:-1])[inside].all()
    assert 0.1 < torch.stack(share).mean() < 0.2


def test_word_starts() -> None:
    dictionary = Dictionary()
    for symbol in ("▁the", "ing", "▁", "<mask>"):
        dictionary.add_symbol(symbol)
    assert word_starts(dictionary).tolist() == [1, 1, 1, 1, 1, 0, 1, 1]


def test_shards_are_taken_in_turn(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    for suffix in (".bin", ".idx"):
        shutil.copy(data / f"valid{suffix}", other / f"train{suffix}")
    task = make_task(data)
    task.cfg.data = f"{data}:{other}"
    sizes = []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        sizes.append(len(task.dataset("train")))
    assert sizes[0] == sizes[2] != sizes[1]


def test_missing_inputs_are_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no dictionary .*dict.txt; scripts/prepare_corpus.sh"):
        make_task(tmp_path)
    task = make_task(data)
    with pytest.raises(FileNotFoundError, match=r"no text in .*/test.bin"):
        task.load_dataset("test")
    with pytest.raises(ValueError, match="--tokens-per-sample 3 leaves no room"):
        make_task(data, tokens_per_sample=3)


@pytest.mark.parametrize(
    "options",
    [{"mask_prob": 0.0}, {"mask_prob": 1.0}, {"leave_unmasked_prob": 0.6, "random_token_prob": 0.6}],
)
def test_impossible_shares_are_refused(data: Path, options: dict) -> None:
    with pytest.raises(ValueError, match=r"--mask-prob .* must lie between 0 and 1"):
        make_task(data, **options)
