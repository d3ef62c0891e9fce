"""The models that a benchmark compares, each as the parts of one step of training.

- ours, any variant, with the optimizer ``fused_adamw`` where this version has it, else fairseq's ``adam``;
- fairseq's RoBERTa of the same size with fairseq's ``adam``, its stock recipe;
- Hugging Face's BERT with scaled dot-product attention, and torch's fused AdamW as its trainer has it;
- the floor: the matrix products that all of them share, by torch.mm and torch.bmm, and nothing else; another
  library may multiply faster (see ``linear.py``).

All of them have post-LayerNorm layers, the same widths, vocabulary and dropouts, and a head that sees the
masked positions alone; RoBERTa and ours go through fairseq's criterion ``masked_lm``.

Shapes: B batch, T tokens, D model width, N masked positions.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.optim import OPTIMIZER_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

from .benchmark_work import PARTS, Step, Work, floor, sample
from .config import HEAD_WIDTH, TupeConfig
from .model import TupeModel
from .variants import VARIANTS
from .vocabulary import PAD

ROBERTA, HUGGING_FACE, FLOOR = "roberta", "hugging_face", "floor"
PEERS = (*VARIANTS, ROBERTA, HUGGING_FACE, FLOOR)
# configs/base.args
ADAM = {"adam_betas": "(0.9, 0.999)", "adam_eps": 1e-6, "weight_decay": 0.01, "lr": [1e-4]}
CLIP_NORM = 1.0  # likewise


def build(name: str, work: Work) -> Step:
    """The step of a peer with fresh weights.

    Raises:
        ModuleNotFoundError: Hugging Face's ``transformers`` is not installed.
    """
    if name == FLOOR:
        return floor(work)
    torch.manual_seed(work.seed)
    task = Task(work.vocab)
    model = make_model(name, work, task).to(work.device, work.dtype).train()
    if name == HUGGING_FACE:
        return _as_hugging_face(model, work)
    return _as_fairseq(model, optimizer(name), task, work)


def optimizer(name: str) -> str:
    """What updates a peer's weights."""
    if name == HUGGING_FACE:
        return "torch's fused AdamW"
    return "fused_adamw" if name != ROBERTA and "fused_adamw" in OPTIMIZER_REGISTRY else "adam"


def make_model(name: str, work: Work, task: Task) -> Any:
    """A model with fresh weights, for a task of fairseq with a dictionary of the vocabulary."""
    if name == HUGGING_FACE:
        return _hugging_face(work)
    return _roberta(work, task) if name == ROBERTA else _tupe(name, work)


class Task(SimpleNamespace):
    """What models and criterion of fairseq ask of a task: the dictionary."""

    def __init__(self, vocab: int) -> None:
        dictionary = Dictionary()
        for i in range(vocab - len(dictionary)):
            dictionary.add_symbol(f"t{i}")
        super().__init__(source_dictionary=dictionary, target_dictionary=dictionary)


def _tupe(variant: str, work: Work) -> nn.Module:
    cfg = TupeConfig(variant=variant, max_positions=work.length, **_size(work), **_dropout(work))
    return TupeModel(cfg, work.vocab, PAD)


def _roberta(work: Work, task: Task) -> nn.Module:
    args = Namespace(max_positions=work.length, **_size(work), **_dropout(work))
    ARCH_CONFIG_REGISTRY["roberta_base"](args)
    return RobertaModel.build_model(args, task)


def _size(work: Work) -> dict[str, Any]:
    return {
        "encoder_layers": work.layers,
        "encoder_embed_dim": work.width,
        "encoder_ffn_embed_dim": 4 * work.width,
        "encoder_attention_heads": work.width // HEAD_WIDTH,
    }


def _dropout(work: Work) -> dict[str, Any]:
    return {"dropout": work.dropout, "attention_dropout": work.dropout, "activation_dropout": 0.0}


def _as_fairseq(model: nn.Module, optimizer_name: str, task: Task, work: Work) -> Step:
    """A step as ``fairseq.trainer.Trainer.train_step`` does it, in one process."""
    batch, criterion = sample(work), MaskedLmLoss(MaskedLmConfig(tpu=False), task)
    cls = OPTIMIZER_REGISTRY[optimizer_name]
    options = OmegaConf.merge(OmegaConf.structured(getattr(cls, "__dataclass")), {**ADAM})
    if "tpu" in options:
        options.tpu = False
    adam = cls(options, list(model.parameters()))
    kept: dict[str, Any] = {}

    def forward() -> None:
        kept["loss"], kept["targets"], _ = criterion(model, batch)

    def backward() -> None:
        adam.backward(kept.pop("loss"))

    def clip() -> None:
        adam.multiply_grads(1 / kept["targets"].float())
        adam.clip_grad_norm(CLIP_NORM)

    def update() -> None:
        adam.step()
        adam.zero_grad()

    return dict(zip(PARTS, (forward, backward, clip, update)))


def _hugging_face(work: Work) -> Any:
    # A package of fairseq's asks for torchaudio, which may not fit this torch; BERT does without.
    sys.modules.setdefault("torchaudio", cast(Any, None))
    import transformers

    cfg = transformers.BertConfig(
        vocab_size=work.vocab,
        hidden_size=work.width,
        num_hidden_layers=work.layers,
        num_attention_heads=work.width // HEAD_WIDTH,
        intermediate_size=4 * work.width,
        hidden_dropout_prob=work.dropout,
        attention_probs_dropout_prob=work.dropout,
        max_position_embeddings=work.length,
        pad_token_id=PAD,
    )
    return transformers.AutoModelForMaskedLM.from_config(cfg, attn_implementation="sdpa")


def _as_hugging_face(model: Any, work: Work) -> Step:
    """A step with the head at masked positions alone, which the library itself does not offer."""
    batch = sample(work)
    chosen = batch["target"].ne(PAD)  # (B, T)
    fused = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    kept: dict[str, Tensor] = {}

    def forward() -> None:
        features = model.bert(batch["net_input"]["src_tokens"]).last_hidden_state[chosen]  # (N, D)
        kept["loss"] = F.cross_entropy(model.cls(features).float(), batch["target"][chosen])

    def backward() -> None:
        kept.pop("loss").backward()

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)

    def update() -> None:
        fused.step()
        fused.zero_grad()

    return dict(zip(PARTS, (forward, backward, clip, update)))
