"""Converting checkpoints of the authors' code: six whose numbers are known; what fairseq makes of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tiny_official
import torch
from commands import run
from conftest import ROOT
from fairseq.data import Dictionary
from omegaconf import II
from torch.serialization import get_unsafe_globals_in_checkpoint

from tupe_fairseq import checkpoints, convert
from tupe_fairseq.config import TupeConfig
from tupe_fairseq.glue import TASKS, PreparedTask
from tupe_fairseq.masked_lm import TupeMaskedLMConfig
from tupe_fairseq.model import load_model
from tupe_fairseq.official import TIED, parameters
from tupe_fairseq.token_file import TokenFile

VARIANTS = ["tupe_a", "tupe_r"]
KINDS = ["", "_finetuned", "_fp16_legacy"]
HEAD = "sentence_classification_head"
TOLERANCE = 1e-11  # of logits in float64: golden/README.md


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> Path:
    return shared_data / "golden"


@pytest.fixture(scope="module")
def converted(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a conversion of each."""
    out = tmp_path_factory.mktemp("converted")
    for name in (variant + "_tiny" + kind for variant in VARIANTS for kind in KINDS):
        convert.convert(golden / f"official_{name}.pt", golden / "dict.txt", out / name)
    return out


@pytest.fixture
def official(tmp_path: Path) -> tuple[Path, Path]:
    """A tiny checkpoint and its dictionary."""
    torch.save(tiny_official.state(), tmp_path / "official.pt")
    return tmp_path / "official.pt", tiny_official.dictionary(tmp_path / "dict.txt")


def numbers_of(golden: Path, name: str) -> dict[str, np.ndarray]:
    """The authors' numbers of a model; those of half precision were made from the whole ones."""
    with np.load(golden / f"{name.removesuffix('_fp16_legacy')}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def weights_of(golden: Path, name: str) -> dict[str, torch.Tensor]:
    """The authors' weights by our names, in float32."""
    found = {
        k[6:]: torch.from_numpy(v) for k, v in numbers_of(golden, name).items() if k.startswith("param/")
    }
    if name.endswith("_fp16_legacy"):
        found = {theirs: weight.half().float() for theirs, weight in found.items()}
    names = parameters(2, relative="tupe_r" in name, heads=[HEAD] if "finetuned" in name else [])
    return {names[theirs][0]: weight for theirs, weight in found.items() if theirs != TIED}


def close(actual: torch.Tensor, expected: np.ndarray) -> None:
    assert np.abs(actual.detach().numpy() - expected).max() <= TOLERANCE


# The authors' checkpoints


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_the_authors_bit_for_bit(golden: Path, converted: Path, variant: str, kind: str) -> None:
    name = f"{variant}_tiny{kind}"
    weights = torch.load(converted / name / "model.pt", weights_only=True)["model"]
    expected = weights_of(golden, name)
    assert weights.keys() == expected.keys()
    for key, weight in weights.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight.view(torch.int32), expected[key].view(torch.int32)), key
    assert weights["encoder.embed_tokens.weight"][1].abs().max() > 0.1, "the row of <pad> is trained"


@pytest.mark.parametrize("batch", ["pad", "nopad"])
@pytest.mark.parametrize("kind", ["", "_finetuned"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_the_authors(golden: Path, converted: Path, variant: str, kind: str, batch: str) -> None:
    name = f"{variant}_tiny{kind}"
    model = load_model(checkpoints.load(converted / name / "model.pt")).double()
    numbers = numbers_of(golden, name)
    tokens = torch.from_numpy(numbers[f"input/{batch}/tokens"])
    if kind:
        logits, _ = model(tokens, classification_head_name=HEAD)
        close(logits, numbers[f"expected_f64/{batch}/cls_logits"])
    else:
        close(model(tokens)[0], numbers[f"expected_f64/{batch}/logits"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_options_are_the_authors(golden: Path, converted: Path, variant: str, kind: str) -> None:
    path = converted / f"{variant}_tiny{kind}" / "model.pt"
    options = checkpoints.model_options(checkpoints.load(path), path)
    assert options.keys() == {field.name for field in fields(TupeConfig)} - {
        "resize_positions",
        "attention_impl",
        "checkpoint_activations",
    }
    config = json.loads(str(numbers_of(golden, f"{variant}_tiny{kind}")["config/json"]))
    for name in options.keys() - {"_name", "variant"}:
        assert options[name] == config.get(name, 0.0), f"{name}; of dropout there is none"
    assert options["variant"] == variant == config["variant"].lower().replace("-", "_")
    assert options["_name"] == f"{variant}_base"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_conversion_is_what_fairseq_saves(converted: Path, variant: str, kind: str) -> None:
    path = converted / f"{variant}_tiny{kind}" / "model.pt"
    assert get_unsafe_globals_in_checkpoint(path) == []
    state = checkpoints.load(path)
    task = dict(state["cfg"]["task"])
    assert (task.pop("_name"), task.pop("data")) == ("tupe_masked_lm", str(path.parent))
    assert (task.pop("tokens_per_sample"), task.pop("seed")) == (16, 1)
    defaults = {field.name: field.default for field in fields(TupeMaskedLMConfig)}
    assert defaults.pop("_name", None) is None
    assert defaults.pop("seed") == II("common.seed")
    del defaults["data"], defaults["tokens_per_sample"]
    assert task == {
        name: str(value) if name == "sample_break_mode" else value for name, value in defaults.items()
    }
    assert "last_optimizer_state" not in state
    assert [entry["num_updates"] for entry in state["optimizer_history"]] == [0]


def test_the_dictionary_gives_their_ids(golden: Path, converted: Path) -> None:
    theirs = (golden / "dict.txt").read_text()
    ours = (converted / "tupe_a_tiny" / "dict.txt").read_text()
    assert ours == "<file> 0\n<email> 0\n<url> 0\n" + theirs
    dictionary = Dictionary.load(str(converted / "tupe_a_tiny" / "dict.txt"))
    dictionary.add_symbol("<mask>")
    config = json.loads(str(numbers_of(golden, "tupe_a_tiny")["config/json"]))
    assert (len(dictionary), dictionary.index("<mask>")) == (config["vocab_size"], 59)
    named = ["<s>", "<pad>", "</s>", "<unk>", "<file>", "<email>", "<url>", "the", "that"]
    assert [dictionary.index(name) for name in named] == [0, 1, 2, 3, 4, 5, 6, 7, 58]


@pytest.mark.slow
def test_what_is_said(golden: Path, tmp_path: Path) -> None:
    """As a user runs it, where there is no fairseq."""
    hide = """
import importlib.util, runpy, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == "fairseq" else real(name, *args)
sys.modules.update(dict.fromkeys(["fairseq", "omegaconf", "hydra"]))  # importing one of them fails
runpy.run_module("tupe_fairseq.convert", run_name="__main__")
"""
    source = golden / "official_tupe_r_tiny_finetuned.pt"
    command = (source, "--dict", golden / "dict.txt", "-o", tmp_path / "an out")
    output = run(sys.executable, "-c", hide, *command, cwd=tmp_path, PYTHONPATH=str(ROOT))
    count = sum(weight.numel() for weight in weights_of(golden, "tupe_r_tiny_finetuned").values())
    for part in (
        "official_tupe_r_tiny_finetuned.pt: tupe_r\n",
        "2 layers of width 32, inner width 64, 4 heads, 16 positions\n",
        f"  {count:,} parameters, float32\n",
        "vocabulary of 60: 7 special symbols, 52 of the dictionary, <mask>\n",
        f"sentence heads: {HEAD} (2 outputs)\n",
        "left out: decoder.lm_head.weight (the embeddings once more)",
        "'extra_state', 'last_optimizer_state', 'optimizer_history'",
        f"--path '{tmp_path / 'an out'}'/model.pt",
    ):
        assert part in output


def test_what_is_said_of_half_precision(golden: Path) -> None:
    model = convert.read(golden / "official_tupe_a_tiny_fp16_legacy.pt")
    said = convert.report(model, Path("in.pt"), Path("out"))
    assert "parameters, float32, made from float16\n" in said
    assert "sentence heads: none\n" in said
    assert "last_optimizer_state" not in said


# The dictionary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a 1\nb 1\nc 1\n",
            r"of 12 symbols but .*dict.txt makes 11: 7 special ones, its 3 lines and <mask>",
        ),
        (b"a 1\nb 1\nc 1\nd 1\ne 1\n", r"of 12 symbols but .*dict.txt makes 13: 7 special ones, its 5 lines"),
        (b"", r"of 12 symbols but .*dict.txt makes 8: 7 special ones, its 0 lines"),
        (b"a 1\nb\n", r"line 2 is 'b', not a symbol and its count$"),
        (b"a 1\n\nb 1\n", r"line 2 is '', not"),
        (b"a 1\n\n", r"line 2 is '', not"),
        (b"a 1\n 5\n", r"line 2 is ' 5', not"),
        (b"a 1\nb -1\n", r"line 2 is 'b -1', not"),
        (b"a 1\nb \xc2\xb2\n", r"line 2 is 'b ²', not"),
        (b"a 1\nb 1 #fairseq:overwrite\n", r"line 2 is 'b 1 #fairseq:overwrite', not"),
        (b"a\rb 1\n", r"line 1 is 'a\\rb 1', not"),
        (b"a " + b"9" * 5000 + b"\n", r"line 1 is 'a 9999"),
        (b"a 1\n\xff 1\n", r"line 2 is not UTF-8$"),
        (b"a 1\nb 1\na 1\n", r"line 3 has 'a' a second time$"),
        (b"a 1\n<mask> 1\n", r"line 2 has <mask>, which their code adds"),
        *(
            (f"a 1\n{name} 1\n".encode(), f"line 2 has {name}, which their code adds")
            for name in ("<s>", "<pad>", "</s>", "<unk>", "<file>", "<email>", "<url>")
        ),
    ],
)
def test_dictionaries_that_do_not_fit(official: tuple[Path, Path], content: bytes, message: str) -> None:
    official[1].write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        convert.convert(*official, official[0].parent / "out")
    assert "\n" not in str(caught.value)
    assert not (official[0].parent / "out").exists()


def test_a_dictionary_with_line_ends_of_windows(official: tuple[Path, Path], tmp_path: Path) -> None:
    official[1].write_bytes(b"a b 4\r\n\xe2\x96\x81b 3\r\nc 2\r\nd 1\r\n")
    convert.convert(*official, tmp_path / "out")
    lines = (tmp_path / "out" / "dict.txt").read_bytes().decode().split("\n")
    assert lines == ["<file> 0", "<email> 0", "<url> 0", "a b 4", "▁b 3", "c 2", "d 1", ""]


def test_a_missing_dictionary(official: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^no dictionary .*nothing\.txt; --dict names"):
        convert.convert(official[0], tmp_path / "nothing.txt", tmp_path / "out")


# The folder that is written


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_only_a_new_folder_is_written(official: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new" / "out", tmp_path / "empty"):
        convert.convert(*official, out)
        before = contents(out)
        assert sorted(before) == ["dict.txt", "model.pt"]
        with pytest.raises(ValueError, match=r"out exists; name a new folder$|empty exists; "):
            convert.convert(*official, out)
        assert contents(out) == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_a_file_in_place_of_the_folder(official: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="exists; name a new folder"):
        convert.convert(*official, official[1])


def test_nothing_is_half_written(
    official: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full halfway."""
    out = tmp_path / "new" / "out"

    def save(state: object, path: Path) -> None:
        path.write_bytes(b"PK")
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0\nframe 0")

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match=r"^cannot write .*model\.pt: \[enforce fail .* 64 vs 0$"):
        convert.convert(*official, out)
    assert list(out.parent.iterdir()) == []


# The command


@pytest.mark.parametrize(
    "problem", ["no checkpoint", "other bytes", "converted already", "no folder can be made"]
)
def test_the_command_ends_with_one_sentence(
    official: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    source, dictionary, out = *official, tmp_path / "out"
    if problem == "no checkpoint":
        source = tmp_path / "missing.pt"
    elif problem == "other bytes":
        source.write_bytes(b"no checkpoint")
    elif problem == "converted already":
        convert.convert(*official, tmp_path / "first")
        source = tmp_path / "first" / "model.pt"
    else:
        out = dictionary / "out"
    command = ["convert", source, "--dict", dictionary, "-o", out]
    monkeypatch.setattr(sys, "argv", [str(word) for word in command])
    with pytest.raises(SystemExit, match=r"^convert: [^\n]+$"):
        convert.main()
    assert not (tmp_path / "out").exists()


# What fairseq makes of it


def losses(output: str) -> list[float]:
    """Those of the validations."""
    return [float(loss) for loss in re.findall(r"\| valid \|.*?loss ([\d.]+)", output)]


@pytest.fixture(scope="module")
def model(converted: Path) -> Path:
    return converted / "tupe_r_tiny_finetuned"


@pytest.fixture(scope="module")
def corpus(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of rows of random ids, with the converted dictionary."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "bin").mkdir()
    shutil.copy(model / "dict.txt", folder / "bin")
    random = np.random.default_rng(0)
    for split, rows in {"train": 40, "valid": 9}.items():
        with TokenFile(folder / "bin" / split, 59) as file:
            for _ in range(rows):
                file.add([*random.integers(4, 59, size=10), 2])
    return folder


def trained_weights(path: Path) -> dict[str, torch.Tensor]:
    state = torch.load(path)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    return state["model"]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["--restore-file", "--finetune-from-model"])
def test_pretraining_starts_from_it(
    golden: Path, model: Path, corpus: Path, tmp_path: Path, start: str
) -> None:
    """With a rate of 0 the weights stay: those of a training are the authors' if it did start there."""
    said = convert.report(convert.read(golden / f"official_{model.name}.pt"), Path("in.pt"), model)
    flags = said.splitlines()[-1].split()[2:]  # those that the conversion names, without its own start
    output = run(
        *("bash", ROOT / "scripts" / "pretrain.sh", corpus, "save", start, model / "model.pt", *flags),
        *("--batch-size", "8", "--max-update", "2", "--lr", "0", "--num-workers", "0"),
        cwd=tmp_path,
        CONFIG=str(ROOT / "configs" / "tiny.args"),
    )
    assert "model.pt (epoch 1 @ 0 updates)" in output
    weights = trained_weights(tmp_path / "save" / "checkpoint_last.pt")
    expected = {k: v for k, v in weights_of(golden, model.name).items() if not k.startswith("classification")}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
    validated = run(
        *("fairseq-validate", corpus / "bin", "--user-dir", ROOT / "tupe_fairseq"),
        *("--task", "tupe_masked_lm", "--path", model / "model.pt", "--batch-size", "4"),
        *("--log-format", "simple", "--num-workers", "0"),
        cwd=tmp_path,
    )
    assert losses(validated)[-1] == losses(output)[-1], "the same weights on the same rows"


@pytest.mark.slow
def test_finetuning_starts_from_it(golden: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin" / "RTE"
    for part in ("input0", "input1", "label"):
        (folder / part).mkdir(parents=True)
    shutil.copy(model / "dict.txt", folder)
    random, rows = np.random.default_rng(0), {"train": 8, "valid": 5, "test": 2}
    for split, count in rows.items():
        for part in ("input0", "input1"):
            with TokenFile(folder / part / split, 59) as file:
                for _ in range(count):
                    file.add([*random.integers(4, 59, size=4), 2])
        labels = random.choice(TASKS["RTE"].labels, count)
        (folder / "label" / f"{split}.label").write_text("".join(f"{label}\n" for label in labels))
    PreparedTask(TASKS["RTE"], rows, "of the authors").save(folder)
    output = run(
        *("bash", ROOT / "scripts" / "finetune_glue.sh", "RTE", "bin", model / "model.pt", "save"),
        *("--batch-size", "4", "--max-epoch", "1", "--lr", "0", "--num-workers", "0"),
        cwd=tmp_path,
    )
    assert "sentence head sentence_classification_head: from the checkpoint" in output
    weights = trained_weights(tmp_path / "save" / "checkpoint_last.pt")
    expected = weights_of(golden, model.name)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
