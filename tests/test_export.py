"""The export for transformers, in a Python that cannot import this plugin or fairseq, gives our numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_pretrained
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tupe_fairseq import export_hf
from tupe_fairseq.hub import TupeHubInterface
from tupe_fairseq.model import TupeModel
from tupe_fairseq.tokenization_tupe import TupeTokenizerFast
from tupe_fairseq.variants import VARIANTS
from tupe_fairseq.vocabulary import BOS, EOS, MASK

TEXTS = ["the import statement", f"The {MASK} of the module"]
# What a colleague has: no fairseq, nothing of ours but the folder.
ALONE = """
import json, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fairseq", "tupe_fairseq", "omegaconf", "hydra"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
folder, texts = sys.argv[1], json.loads(sys.argv[2])
remote = dict(trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, **remote)
rows = tokenizer(texts, padding=True, return_tensors="pt")
"""
MASKED_LM = """
from transformers import pipeline
model = AutoModelForMaskedLM.from_pretrained(folder, **remote)
with torch.no_grad():
    out = model(**rows, labels=rows.input_ids, output_hidden_states=True)
    features = AutoModel.from_pretrained(folder, **remote)(**rows).last_hidden_state
guesses = pipeline("fill-mask", model=folder, **remote)(texts[1], top_k=3)
torch.save({
    "logits": out.logits, "loss": out.loss, "features": features, "layers": len(out.hidden_states),
    "guesses": [(guess["token"], guess["score"]) for guess in guesses],
}, sys.argv[3])
"""
CLASSES = """
from transformers import Trainer, TrainingArguments
model = AutoModelForSequenceClassification.from_pretrained(folder, **remote)
model.eval()
with torch.no_grad():
    logits = model(**rows).logits
data = [{**{k: v[i] for k, v in rows.items()}, "labels": i % 2} for i in (0, 1, 0, 1)]
arguments = TrainingArguments(sys.argv[3] + "-run", max_steps=2, learning_rate=1e-2, report_to=[],
                              use_cpu=True, logging_steps=1, save_steps=2, disable_tqdm=True)
before = model.tupe.encoder.embed_tokens.weight.clone()
trainer = Trainer(model, arguments, train_dataset=data, processing_class=tokenizer)
trainer.train()
again = AutoModelForSequenceClassification.from_pretrained(sys.argv[3] + "-run/checkpoint-2", **remote)
same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
moved = not torch.equal(before, model.tupe.encoder.embed_tokens.weight)
reloaded = AutoTokenizer.from_pretrained(sys.argv[3] + "-run/checkpoint-2", **remote)
torch.save({
    "logits": logits, "names": model.config.id2label, "moved": moved, "same": same,
    "ids": tokenizer(texts).input_ids == reloaded(texts).input_ids,
}, sys.argv[3])
"""


def alone(code: str, folder: Path, out: Path) -> dict:
    """Runs code with the folder in a Python without the plugin, and reads what it saves."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(out.parent / "modules")}
    words = [sys.executable, "-c", ALONE + code, str(folder), json.dumps(TEXTS), str(out)]
    run = subprocess.run(words, env=environment, cwd=out.parent, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return torch.load(out)


def test_a_pre_trained_model_gives_our_logits_without_the_plugin(tmp_path: Path) -> None:
    tiny_pretrained.make(tmp_path / "run")
    said = export_hf.export(tmp_path / "run", tmp_path / "out")
    assert "a TupeForMaskedLM of " in said
    tupe = TupeModel.from_pretrained(tmp_path / "run")
    there = alone(MASKED_LM, tmp_path / "out", tmp_path / "results.pt")
    tokens = tupe.encode(TEXTS)
    with torch.no_grad():
        logits = tupe.model(tokens)[0]
        features = tupe.extract_features(tokens)
    torch.testing.assert_close(there["logits"], logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(there["features"], features, atol=1e-5, rtol=0)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    torch.testing.assert_close(there["loss"], loss)
    assert there["layers"] == 1 + 2
    guesses = tupe.fill_mask(TEXTS[1], topk=3)
    assert [score for _, score in there["guesses"]] == pytest.approx(
        [g.probability for g in guesses], rel=1e-4
    )
    pieces = [tupe.vocabulary.pieces[token] for token, _ in there["guesses"]]
    assert pieces == [guess.token.replace(" ", "▁") for guess in guesses]


def test_a_fine_tuned_model_classifies_and_trains_on_without_the_plugin(tmp_path: Path) -> None:
    tiny_pretrained.make(tmp_path / "run", outputs=2, task="RTE")
    assert "a TupeForSequenceClassification" in export_hf.export(tmp_path / "run", tmp_path / "out")
    there = alone(CLASSES, tmp_path / "out", tmp_path / "results.pt")
    tupe = TupeModel.from_pretrained(tmp_path / "run")
    with torch.no_grad():
        logits = tupe.predict("sentence_classification_head", tupe.encode(TEXTS), return_logits=True)
    torch.testing.assert_close(there["logits"], logits, atol=1e-5, rtol=0)
    assert there["names"] == {0: "entailment", 1: "not_entailment"}  # glue.TASKS["RTE"].labels
    assert there["moved"]
    assert there["same"]
    assert there["ids"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_the_same_there(tmp_path: Path, variant: str) -> None:
    tiny_pretrained.make(tmp_path / "run", variant=variant)
    export_hf.export(tmp_path / "run", tmp_path / "out")
    model = export_hf.modeling_tupe.TupeForMaskedLM.from_pretrained(tmp_path / "out")
    tupe = TupeModel.from_pretrained(tmp_path / "run")
    tokens = tupe.encode(TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, tupe.model(tokens)[0], atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TupeHubInterface, TupeTokenizerFast]:
    folder = tmp_path_factory.mktemp("export")
    tiny_pretrained.make(folder / "run")
    export_hf.export(folder / "run", folder / "out")
    return TupeModel.from_pretrained(folder / "run"), TupeTokenizerFast.from_pretrained(folder / "out")


ACCENTS = st.text(
    st.sampled_from(
        "aEıİß ﬁ\u0301\u0302\u0327\u0323\u0345\u0368\u0344\ufffd\u0085\u200d\ue000ひﾞ각\u1100\u1161"
    )
)
NAMES = st.lists(st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", "<", "＜s＞", "<MASK>", " ", "a"])).map(
    "".join
)


@settings(max_examples=300)
@given(st.text() | ACCENTS | NAMES)
def test_ids_are_ours_on_any_text(both: tuple[TupeHubInterface, TupeTokenizerFast], text: str) -> None:
    tupe, tokenizer = both
    text = text.replace(MASK, "")
    assert tokenizer(text).input_ids == [BOS, *tupe.vocabulary.encode(text), EOS]
    assert tokenizer(text, "a").input_ids == tupe.encode(text, "a").tolist()


@settings(max_examples=200)
@given(ACCENTS | NAMES | st.text(), ACCENTS | NAMES | st.text())
def test_ids_around_a_mask_are_ours(
    both: tuple[TupeHubInterface, TupeTokenizerFast], before: str, behind: str
) -> None:
    tupe, tokenizer = both
    text = f"{before}{MASK}{behind}"
    assert tokenizer(text).input_ids == tupe.encode(text).tolist()


@pytest.mark.parametrize("folder", ["corpus", "ugly"])
def test_ids_are_ours_on_real_lines(
    both: tuple[TupeHubInterface, TupeTokenizerFast], shared_data: Path, folder: str
) -> None:
    tupe, tokenizer = both
    lines = [
        line
        for path in sorted((shared_data / folder).rglob("*"))
        if path.is_file()
        for line in path.read_bytes().decode("utf-8", "replace").split("\n")
    ]
    assert len(lines) > 50
    ours = [[BOS, *tupe.vocabulary.encode(line), EOS] for line in lines]
    assert tokenizer(lines).input_ids == ours


def test_the_card_has_the_figures_of_the_run(tmp_path: Path) -> None:
    tiny_pretrained.make(tmp_path / "run")
    export_hf.export(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| updates | 1,234 |" in card
    assert "| validation loss, best of the run | 2.2500 |" in card
    assert "AutoModelForMaskedLM.from_pretrained(FOLDER, trust_remote_code=True)" in card


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    tiny_pretrained.make(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(ValueError, match="out exists; name a new folder"):
        export_hf.export(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_model_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_pretrained.make(tmp_path / "run")
    monkeypatch.setattr(export_hf, "LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(ValueError, match=r"differ by .* nothing was written"):
        export_hf.export(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_two_heads_cannot_be_exported(tmp_path: Path) -> None:
    model = tiny_pretrained.make(tmp_path / "run", outputs=2)
    model.register_classification_head("other", 3)
    with pytest.raises(ValueError, match="sentence_classification_head, other; one can be exported"):
        export_hf._transformers_model(model, None)


@pytest.mark.parametrize("history", [None, "text", [], [7], {}])
def test_a_card_of_a_checkpoint_that_tells_nothing(tmp_path: Path, history: object) -> None:
    tiny_pretrained.make(tmp_path / "run", outputs=2)
    state = torch.load(tmp_path / "run" / "checkpoint_best.pt")
    state |= {"optimizer_history": history, "extra_state": "text"}
    state["task_state"]["glue_task"] = ["RTE"]
    torch.save(state, tmp_path / "run" / "checkpoint_best.pt")
    export_hf.export(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "nan" not in card
    assert "fine-tuned on a sentence task" in card


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path) -> None:
    tiny_pretrained.make(tmp_path / "run")
    path = tmp_path / "run" / "spm.model"
    proto = ModelProto.FromString(path.read_bytes())
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ValueError, match=r"spm\.model is no BPE model"):
        export_hf.export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["TupeModel", "TupeForMaskedLM", "TupeForSequenceClassification"])
def test_tuples_where_they_are_asked_for(kind: str) -> None:
    modeling = export_hf.modeling_tupe
    config = modeling.TupeConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model, tokens = getattr(modeling, kind)(config).eval(), torch.tensor([[0, 5, 2]])
    first = model(tokens)[0]
    torch.testing.assert_close(model(tokens, return_dict=False)[0], first)
    model.config.return_dict = False
    assert type(model(tokens)) is tuple
