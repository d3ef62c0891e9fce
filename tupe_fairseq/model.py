"""The fairseq model ``tupe``: the torch-only encoder with a masked LM head and sentence heads.

Shapes: B batch, T tokens, D model width, V vocabulary, N masked positions of a batch.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch
from fairseq.models import BaseFairseqModel, register_model, register_model_architecture
from torch import Tensor, nn

from .checkpoints import EMBEDDINGS, check_vocabulary, check_weights, load, model_options, model_weights
from .config import TupeConfig, architectures, complete, encoder_config
from .encoder import TupeEncoder, init_weights
from .heads import LMHead, SentenceHead
from .hub import TupeHubInterface
from .positional import resize_positions
from .save_folder import find_checkpoint
from .vocabulary import DICTIONARY_FILE, MASK, MODEL_FILE, PAD, Vocabulary, dictionary_fingerprint

logger = logging.getLogger(__name__)


@register_model("tupe", dataclass=TupeConfig)
class TupeModel(BaseFairseqModel):
    """Encoder-only Transformer with untied positional encoding."""

    def __init__(self, cfg: TupeConfig, vocab_size: int, padding_idx: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.encoder = TupeEncoder(encoder_config(cfg, vocab_size, padding_idx))
        self.lm_head = LMHead(cfg.encoder_embed_dim, vocab_size)
        self.classification_heads = nn.ModuleDict()
        # What is done with those of a checkpoint; where one is not used, the fresh weights stay.
        self.checkpoint_heads: Literal["required", "if they fit", "unused"] = "required"
        self.apply(init_weights)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> TupeModel:
        """Builds the model for a task, whose rows must fit the position table.

        Raises:
            ValueError: the task's rows are longer than the model's positions, or the options contradict each
                other.
        """
        cfg = complete(cfg)
        if task.max_positions() > cfg.max_positions:
            raise ValueError(
                f"--tokens-per-sample {task.max_positions()} asks for longer sequences than the "
                f"--max-positions {cfg.max_positions} of the model; lower the one or raise the other"
            )
        return cls(cfg, len(task.source_dictionary), task.source_dictionary.pad())

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | Path,
        checkpoint_file: str | None = None,
        data_name_or_path: str | Path | None = None,
    ) -> TupeHubInterface:
        """A trained model with its vocabulary, in evaluation mode, as fairseq's RoBERTa gives it.

        Args:
            model_name_or_path: SAVE_DIR of a training, or a checkpoint.
            checkpoint_file: of that folder; by default the best, else the last.
            data_name_or_path: folder of `dict.txt` and `spm.model`, by default that of the checkpoint.

        Raises:
            FileNotFoundError: there is no checkpoint, or no vocabulary beside it.
            ValueError: the checkpoint is damaged or not of this plugin, or of another vocabulary.
        """
        path = Path(model_name_or_path)
        path = path / checkpoint_file if checkpoint_file else find_checkpoint(path)
        state = load(path)
        model = load_model(state)
        folder = Path(data_name_or_path or path.parent)
        for name in (MODEL_FILE, DICTIONARY_FILE):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"no {folder / name}, and text needs the vocabulary of the model; name its folder with "
                    "data_name_or_path"
                )
        vocabulary = Vocabulary(folder)
        symbols = [*vocabulary.pieces, MASK]
        check_vocabulary(state, path, len(symbols), dictionary_fingerprint(symbols))
        return TupeHubInterface(model, vocabulary)

    def max_positions(self) -> int:
        """Longest sequence in tokens, [CLS] included."""
        return self.encoder.cfg.max_positions

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        features_only: bool = False,
        masked_tokens: Tensor | None = None,
        classification_head_name: str | None = None,
        return_all_hiddens: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Runs the encoder and one head; the names are those of fairseq's RoBERTa.

        Args:
            src_tokens: (B, T), [CLS] first, padding last.
            src_lengths: not used; the padding is read from the tokens.
            features_only: no head.
            masked_tokens: (B, T), True at the N positions to predict; all when None.
            classification_head_name: the sentence head to use in place of the masked LM's.
            return_all_hiddens: also return the embeddings and each layer's output, (B, T, D) each.

        Returns:
            Logits (N, V), or (B, T, V) without masked_tokens; features (B, T, D) if features_only; or the
            sentence head's (B, classes). With it {"inner_states": hidden states}.
        """
        features, hiddens = self.encoder(src_tokens, return_all_hiddens)
        extra = {"inner_states": hiddens}
        if classification_head_name is not None:
            return self.classification_heads[classification_head_name](features), extra
        if features_only:
            return features, extra
        if masked_tokens is not None:
            features = features[masked_tokens]  # (N, D)
        return self.lm_head(features, self.encoder.embed_tokens.weight), extra

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: dict | None = None
    ) -> Tensor:
        """(Log-)probabilities in float32, of the shape of the logits."""
        logits = net_output[0].float()
        return logits.log_softmax(dim=-1) if log_probs else logits.softmax(dim=-1)

    def register_classification_head(self, name: str, num_classes: int) -> None:
        """Adds a sentence head with fresh weights, or replaces the one of that name."""
        head = SentenceHead(self.cfg.encoder_embed_dim, num_classes, self.cfg.pooler_dropout)
        self.classification_heads[name] = head.apply(init_weights)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Lets a checkpoint start a model with other sentence heads, and the log says so.

        A head that the model lacks is left out; `checkpoint_heads` says what happens to those that it has.
        With --resize-positions, position tables of another length are made to fit. Nothing else may be
        missing or left over, or have another shape.

        Raises:
            ValueError: a sentence head is required, and the checkpoint has none that fits.
        """
        super().upgrade_state_dict_named(state_dict, name)
        check_weights(state_dict)
        prefix = f"{name}." if name else ""
        if self.cfg.resize_positions:
            for line in self.resize_positions(state_dict, prefix):
                logger.info(line)
        self._fit_heads(state_dict, f"{prefix}classification_heads.")

    def _fit_heads(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        own = {head: module.state_dict() for head, module in self.classification_heads.items()}
        theirs: dict[str, dict[str, Tensor]] = {head: {} for head in own}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            head, _, weight = key.removeprefix(prefix).partition(".")
            theirs.setdefault(head, {})[weight] = state_dict.pop(key)
        for head, weights in theirs.items():
            if head not in own:
                logger.warning("the checkpoint's sentence head %s is left out, as this model has none", head)
                continue
            why = "none of that name" if not weights else "other shapes"
            if shapes(weights) == shapes(own[head]):
                why = "that of another task" if self.checkpoint_heads == "unused" else ""
            elif self.checkpoint_heads == "required":
                raise ValueError(f"the checkpoint is no model of this task: of its head {head} it has {why}")
            if why:
                logger.warning("sentence head %s: fresh weights, as the checkpoint has %s", head, why)
                weights = own[head]
            else:
                logger.info("sentence head %s: from the checkpoint", head)
            state_dict.update({f"{prefix}{head}.{weight}": value for weight, value in weights.items()})

    def resize_positions(self, state_dict: dict[str, Tensor], prefix: str = "") -> list[str]:
        """Makes the position tables of a checkpoint fit this model, in place; returns what there is to log.

        Raises:
            ValueError: there is no row of a position to stretch.
        """
        done = []
        for table, reset in self.encoder.position_tables().items():
            table = f"{prefix}encoder.{table}"
            rows = state_dict[table]
            there, here = len(rows) - reset, self.max_positions()
            if there != here:
                how = "cut" if here < there else "interpolated"
                done.append(f"{table}: {there} positions in the checkpoint, {here} here; its rows are {how}")
                state_dict[table] = resize_positions(rows, here, reset)
        return done


def shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each weight, by name."""
    return {name: weight.shape for name, weight in weights.items()}


def load_model(state: dict[str, Any]) -> TupeModel:
    """The model of a checkpoint with its weights, in evaluation mode, without a task.

    Args:
        state: what ``checkpoints.load`` returns.

    Raises:
        ValueError: the checkpoint is not of a model of this plugin, or its weights do not fit its options.
    """
    cfg = complete(model_options(state))
    weights = dict(model_weights(state))
    _check_sizes(weights, cfg)
    model = TupeModel(cfg, len(weights[EMBEDDINGS]), padding_idx=PAD)
    try:
        for key, weight in weights.items():
            if key.startswith("classification_heads.") and key.endswith(".out_proj.weight"):
                model.register_classification_head(key.split(".")[1], weight.size(0))
        model.load_state_dict(weights, strict=True)
    except (RuntimeError, KeyError, IndexError, AttributeError) as error:  # as a hostile file may cause
        raise ValueError(f"the checkpoint's weights do not fit its options: {error}") from None
    return model.eval()


def _check_sizes(weights: dict[str, Tensor], cfg: TupeConfig) -> None:
    """Options can ask for any amount of memory; weights that are there cannot."""
    layers = {key.split(".")[2] for key in weights if key.startswith("encoder.layers.")}
    if len(layers) != cfg.encoder_layers:
        raise ValueError("the checkpoint's weights do not fit its options: other layers")
    with torch.device("meta"):
        sizes = shapes(TupeModel(cfg, len(weights[EMBEDDINGS]), padding_idx=PAD).state_dict())
    wrong = [name for name, size in sizes.items() if name in weights and weights[name].shape != size]
    if wrong:
        raise ValueError(f"the checkpoint's weights do not fit its options: {', '.join(sorted(wrong)[:3])}")


for _name, _preset in architectures().items():
    register_model_architecture("tupe", _name)(_preset)
