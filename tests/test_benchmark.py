"""The benchmark: its peers do the same work and take turns; what its tables say. No speed is asserted."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from commands import attempt, run
from torch.utils.flop_counter import FlopCounterMode

from tupe_fairseq import benchmark, benchmark_steps
from tupe_fairseq.benchmark_corpus import write_text
from tupe_fairseq.benchmark_peers import FLOOR, HUGGING_FACE, ROBERTA, Task, build, make_model
from tupe_fairseq.benchmark_report import markdown, ratios
from tupe_fairseq.benchmark_train import Trainings, recipe
from tupe_fairseq.benchmark_work import PARTS, Work, parse_case, sample

SMALL = Work(batch=2, length=16, layers=3, width=128, vocab=100)
WITHOUT_LIBRARY = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is optional")
STRANGERS = [ROBERTA, pytest.param(HUGGING_FACE, marks=WITHOUT_LIBRARY)]


def products(name: str, part: str) -> int:
    """Additions and multiplications in the matrix products of a part of a step."""
    step = build(name, SMALL)
    if part == "backward":
        step["forward"]()
    with FlopCounterMode(display=False) as counter:
        step[part]()
    return counter.get_total_flops()


@pytest.mark.parametrize("part, times", [("forward", 1), ("backward", 2)])
def test_products_of_the_floor(part: str, times: int) -> None:
    """Of each layer queries, keys and values, the output, the two of 4 D, and the two of attention."""
    b, t, d, n = SMALL.batch, SMALL.length, SMALL.width, int(0.15 * 32)
    layer = b * t * (3 * d * d + d * d + 2 * 4 * d * d) + 2 * b * t * t * d
    head = n * (d * d + d * SMALL.vocab)
    assert products(FLOOR, part) == times * 2 * (SMALL.layers * layer + head)


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_others_do_the_products_of_the_floor_and_no_more(name: str, part: str) -> None:
    """Which also says that their heads see the masked positions alone."""
    assert products(name, part) == products(FLOOR, part)


def test_ours_do_no_less() -> None:
    """A backward pass of ours may be free to do some again, which saves memory."""
    assert products("bert_a", "forward") == products(FLOOR, "forward")


@pytest.mark.parametrize("name", ["tupe_r", *STRANGERS])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_dropout_is_that_of_the_case(name: str, dropout: float) -> None:
    model = make_model(name, Work(2, 16, 1, 64, 100, dropout=dropout), Task(100)).train()
    tokens = torch.arange(4, 36).view(2, 16)
    first, second = (model(tokens)[0] for _ in range(2))
    assert torch.equal(first, second) == (dropout == 0)


@pytest.mark.parametrize("name", ["tupe_r", *STRANGERS])
def test_a_step_changes_all_weights_that_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_model(name, SMALL, Task(SMALL.vocab))
    before = {key: value.clone() for key, value in made.named_parameters()}
    monkeypatch.setattr("tupe_fairseq.benchmark_peers.make_model", lambda *_: made)
    step = build(name, SMALL)
    for part in PARTS:
        step[part]()
    assert all(p.grad is None for p in made.parameters()), "zero_grad"
    same = [key for key, value in made.named_parameters() if torch.equal(value, before[key])]
    assert all("bias" in key or "token_type" in key for key in same), same


def test_the_batch_is_masked_as_the_task_does() -> None:
    work = Work(batch=50, length=4, vocab=1000)  # of 200 tokens, 50 are the first
    batch = sample(work)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    chosen = target != 1
    assert chosen.sum() == 30, "15% of 200"
    assert not chosen[:, 0].any() and (tokens[:, 0] == 0).all()
    assert (tokens[chosen] == 999).all() and (tokens[~chosen] < 999).all()
    assert (target[chosen] >= 4).all() and (tokens[:, 1:] >= 4).all()
    assert torch.equal(tokens, sample(work)["net_input"]["src_tokens"])


def test_cases() -> None:
    usual = Work(batch=1, length=1, vocab=7)
    assert parse_case("8x128", usual) == Work(8, 128, vocab=7)
    assert parse_case("1x2048:layers=4,dropout=0", usual) == Work(1, 2048, layers=4, dropout=0, vocab=7)
    assert parse_case("1x2:dropout=0.25", usual).dropout == 0.25
    for wrong in ("8", "8x", "0x5", "8x128:", "8x128:heads=2", "8x128:layers=0", "8x128:dropout=1", "8x12,"):
        with pytest.raises(ValueError, match="is no case: BATCHxLENGTH"):
            parse_case(wrong, usual)


def test_peers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round is not counted; the one who begins is another in each."""
    begun = []

    def stand_in(name: str, work: Work) -> dict:
        if name == "missing":
            raise ModuleNotFoundError("No module named 'other'", name="other")
        return {"forward": lambda: begun.append(name), "clip": lambda: None}

    monkeypatch.setattr(benchmark_steps, "build", stand_in)
    result = benchmark_steps.time_steps(["a", "missing", "b", "c"], SMALL, rounds=2, steps=2)
    assert "".join(begun) == "aabbcc" + "bbccaa" + "ccaabb"
    assert {name: set(parts) for name, parts in result["seconds"].items()} == {
        name: {"forward", "clip"} for name in "abc"
    }
    assert all(len(times) == 2 for parts in result["seconds"].values() for times in parts.values())
    assert result["left_out"] == {"missing": "other is not installed"}


def test_ratios_are_of_rounds() -> None:
    """Of the medians they would be 2 / 2 = 1."""
    assert ratios([1, 2, 9], [2, 4, 2]) == "0.50 (0.50 to 4.50)"


RUN = {
    "command": "bash scripts/benchmark.sh",
    "commit": "abc1234",
    "date": "2000-01-01",
    "versions": {"torch": "9.9"},
    "machine": {"cpu": "A CPU", "cores": 2, "threads": 1, "system": "Linux", "gpu": None},
}


def test_tables() -> None:
    """A step of ours takes 10 + 20 + 1 + 2 = 33 ms, of RoBERTa's twice that, of the products 30 ms."""
    ours = {"forward": [0.01], "backward": [0.02], "clip": [0.001], "optimizer": [0.002]}
    roberta = {part: [2 * times[0]] for part, times in ours.items()}
    floor = {part: ours[part] for part in ("forward", "backward")}
    case = {
        "seconds": {"tupe_r": ours, "roberta": roberta, "floor": floor},
        "left_out": {"hugging_face": "transformers is not installed"},
        "optimizer": {"tupe_r": "adam", "roberta": "adam"},
        "work": asdict(Work(4, 512)),
    }
    memory = {"tupe_r": {"bytes": 3_000_000_000}, "roberta": {"bytes": 4_000_000_000}}
    growth = {"128": {"tupe_r": {"bytes": 2e6, "seconds": 0.5}, "roberta": {"left_out": "too much"}}}
    text = markdown(
        {
            "memory": {"peers": memory, "work": case["work"], "run": RUN},
            "steps": {"cases": {"4x512:layers=12": case}, "run": RUN},
            "growth": {"lengths": growth, "work": case["work"], "run": {**RUN, "commit": "def5678"}},
        }
    )
    lines = text.splitlines()
    assert "| 4 x 512, layers 12 | 0.033 | 0.50 (0.50 to 0.50) | 1.10 (1.10 to 1.10) |" in lines
    assert "| 4 x 512, layers 12 | fairseq RoBERTa | 20.0 | 40.0 | 2.0 | 4.0 | 66.0 |" in lines
    assert "| 4 x 512, layers 12 | torch.mm alone | 10.0 | 20.0 |  |  | 30.0 |" in lines
    assert "Hugging Face BERT: transformers is not installed." in lines
    assert "| fairseq RoBERTa | 4,000 | 0.75 |" in lines
    assert "| 128 | 500 | too much |  | 2 | too much |  |" in lines
    assert [line.count("abc1234") + 2 * line.count("def5678") for line in lines if "A CPU" in line] == [1, 2]


def test_the_stock_training_has_the_recipe_but_for_the_optimizer(tmp_path: Path) -> None:
    words = Trainings(tmp_path, tmp_path, ["--cpu"], None).words("roberta_base")
    for flag in ("--mask-prob", "--tokens-per-sample", "--adam-betas", "--clip-norm", "--lr", "--dropout"):
        assert words[words.index(flag) + 1] == recipe()[recipe().index(flag) + 1]
    assert words.count("--optimizer") == 1 and words[words.index("--optimizer") + 1] == "adam"
    assert words[words.index("--task") + 1] == "masked_lm"


def test_copies_of_a_text_have_other_words(tmp_path: Path) -> None:
    lines = [f"{i} " * 12 for i in range(20)]
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("\n".join(lines))
    write_text([source], target, 3 * source.stat().st_size)
    written = target.read_text().splitlines()
    assert written[:20] == lines
    differences = [
        sum(a != b for a, b in zip(line.split(), copy.split())) for line, copy in zip(lines, written[20:])
    ]
    assert max(differences) == 1 and sum(differences) > 10, "one in twelve words, now and then by the same"


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="benchmark: torch sees no GPU here"):
        benchmark.main(["--device", "cuda", "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_too_large_a_model_is_left_out(root: Path) -> None:
    """Its position bias alone takes 2^20 x 2^20 x 4 bytes, 4 TB."""
    wanted = {"measure": "peak_memory", "peer": "tupe_r", "work": asdict(Work(1, 1 << 20, 1, 64, 100))}
    module = "tupe_fairseq.benchmark_steps"
    last = run(sys.executable, "-m", module, json.dumps(wanted), cwd=root).splitlines()[-1]
    assert "needs more than the" in json.loads(last)["left_out"]


@pytest.mark.slow
def test_peak_memory_counts_weights_gradients_and_moments(root: Path) -> None:
    """At least 16 bytes a weight, of 50,000 x 256 embeddings and little else; and not the libraries."""
    work = asdict(Work(1, 16, 1, 256, 50_000))
    wanted = json.dumps({"measure": "peak_memory", "peer": "roberta", "work": work})
    last = run(sys.executable, "-m", "tupe_fairseq.benchmark_steps", wanted, cwd=root).splitlines()[-1]
    weights = 50_000 * 256
    assert 16 * weights < json.loads(last)["bytes"] < 16 * weights + 200_000_000


@pytest.mark.slow
def test_a_quick_run_of_steps(root: Path, tmp_path: Path) -> None:
    """All parts take two minutes (CONTRIBUTING.md)."""
    flags = ["--part", "steps", "--quick", "--rounds", 2, "--threads", 1]
    printed = run("bash", root / "scripts/benchmark.sh", *flags, "-o", tmp_path / "out", cwd=tmp_path)
    text = (tmp_path / "out/benchmark.md").read_text()
    assert text in printed
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        "### A step of training: tupe_r against the others",
        "### Parts of a step, milliseconds",
    ]
    case = json.loads((tmp_path / "out/benchmark.json").read_text())["steps"]["cases"]["2x16"]
    for peer in ("tupe_r", "roberta"):
        assert {part: len(times) for part, times in case["seconds"][peer].items()} == dict.fromkeys(PARTS, 2)
    assert case["threads"] == 1


@pytest.mark.slow
def test_a_command_that_fails_is_told(root: Path, tmp_path: Path) -> None:
    text = tmp_path / "empty.txt"
    text.write_text("\n")
    flags = ["--quick", "--part", "train", "--text", text]
    result = attempt("bash", root / "scripts/benchmark.sh", *flags, "-o", tmp_path / "out", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith("benchmark: bash ")
    assert "prepare_corpus.sh" in result.stdout and "Traceback" not in result.stdout
