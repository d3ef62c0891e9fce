"""What an architecture is: its options, and the sizes as a table; ``variants.py`` has the paper's models.

An architecture is ``<variant>_<size>``, ``tupe_r_base`` for example. It sets the options that the user leaves
open, never those that the user gives.
"""

# No "from __future__ import annotations" here: fairseq reads the types of the fields, not their names.

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, Callable

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II

from .attention import IMPLEMENTATIONS
from .encoder import EncoderConfig
from .variants import VARIANTS

# base: the paper, section 4.1, and BERT (arXiv:1810.04805, section 3), as is large; small and tiny: the
# compact BERTs of Turc et al. (arXiv:1908.08962, table 1). The inner width is 4 x the width in all of them,
# and a head is 64 wide.
HEAD_WIDTH = 64
SIZES = {
    "tiny": {"encoder_layers": 2, "encoder_embed_dim": 128},
    "small": {"encoder_layers": 4, "encoder_embed_dim": 512},
    "base": {"encoder_layers": 12, "encoder_embed_dim": 768},
    "large": {"encoder_layers": 24, "encoder_embed_dim": 1024},
}
for _size in SIZES.values():
    _size["encoder_ffn_embed_dim"] = 4 * _size["encoder_embed_dim"]
    _size["encoder_attention_heads"] = _size["encoder_embed_dim"] // HEAD_WIDTH

_BASE = SIZES["base"]


@dataclass
class TupeConfig(FairseqDataclass):
    """The options of the model ``tupe``; the defaults are those of ``tupe_r_base``."""

    variant: ChoiceEnum(list(VARIANTS)) = field(  # type: ignore[valid-type]
        default="tupe_r", metadata={"help": "model of the paper's Table 1"}
    )
    encoder_layers: int = field(default=_BASE["encoder_layers"], metadata={"help": "number of layers"})
    encoder_embed_dim: int = field(
        default=_BASE["encoder_embed_dim"], metadata={"help": "width of the model"}
    )
    encoder_ffn_embed_dim: int = field(
        default=_BASE["encoder_ffn_embed_dim"], metadata={"help": "inner width of the feed-forward"}
    )
    encoder_attention_heads: int = field(
        default=_BASE["encoder_attention_heads"], metadata={"help": "number of attention heads"}
    )
    max_positions: int = field(
        default=II("task.tokens_per_sample"),
        metadata={"help": "longest sequence the model has positions for (default: --tokens-per-sample)"},
    )
    resize_positions: bool = field(
        default=False,
        metadata={
            "help": "let a checkpoint with other --max-positions start this model: its rows of positions are "
            "cut, or interpolated"
        },
    )
    rel_pos_bins: int = field(default=32, metadata={"help": "buckets of relative positions, an even number"})
    max_rel_pos: int = field(default=128, metadata={"help": "distance from which on the last bucket holds"})
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings and layer outputs"})
    attention_dropout: float = field(default=0.1, metadata={"help": "dropout of attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout after the feed-forward's GELU"})
    pooler_dropout: float = field(default=0.0, metadata={"help": "dropout in the sentence head"})
    checkpoint_activations: bool = field(
        default=False,
        metadata={
            "help": "keep only the input of a layer for the backward pass, which computes the layer once "
            "more: less memory, slower, same numbers"
        },
    )
    attention_impl: ChoiceEnum(["auto", *IMPLEMENTATIONS]) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "how attention is computed: reference is the formula, tiles is fast on a CPU, "
            "sdpa on a GPU; auto chooses by the device"
        },
    )


@dataclass
class TupeTaskConfig(FairseqDataclass):
    """The options that the tasks of this plugin share."""

    no_position_logs: bool = field(
        default=False,
        metadata={"help": "leave pictures and figures of positions out of --tensorboard-logdir"},
    )


def complete(options: Mapping[str, Any]) -> TupeConfig:
    """The options of a model, in a checkpoint for example; those that it lacks have their defaults."""
    names = {f.name for f in fields(TupeConfig)} - {"_name"}
    return TupeConfig(**{name: options[name] for name in names if name in options})


def encoder_config(cfg: TupeConfig, vocab_size: int, padding_idx: int) -> EncoderConfig:
    """The numbers of the torch-only encoder that the options ask for.

    Raises:
        ValueError: the options contradict each other; the sentence names the flag to change.
    """
    if not 0 <= cfg.pooler_dropout < 1:
        raise ValueError(f"--pooler-dropout must be a probability below 1, not {cfg.pooler_dropout}")
    return EncoderConfig(
        variant=VARIANTS[str(cfg.variant)],
        vocab_size=vocab_size,
        padding_idx=padding_idx,
        layers=cfg.encoder_layers,
        embed_dim=cfg.encoder_embed_dim,
        ffn_dim=cfg.encoder_ffn_embed_dim,
        num_heads=cfg.encoder_attention_heads,
        max_positions=cfg.max_positions,
        num_buckets=cfg.rel_pos_bins,
        max_distance=cfg.max_rel_pos,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        attention_impl=str(cfg.attention_impl),
        checkpoint_activations=cfg.checkpoint_activations,
    )


def architectures() -> dict[str, Callable[[Any], None]]:
    """Name of every architecture, with the function that sets what the user left open."""

    def preset(options: dict[str, Any]) -> Callable[[Any], None]:
        def set_missing(args: Any) -> None:
            for name, value in options.items():
                if not hasattr(args, name):
                    setattr(args, name, value)

        return set_missing

    return {
        f"{variant}_{size}": preset({"variant": variant, **SIZES[size]})
        for variant, size in product(VARIANTS, SIZES)
    }
