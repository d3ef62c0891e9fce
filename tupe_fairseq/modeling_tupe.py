"""TUPE for Hugging Face's transformers: `export_hf` writes this file, and those that it imports.

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .encoder import EncoderConfig, TupeEncoder, init_weights
from .heads import LMHead, SentenceHead
from .positional import RelativePositions
from .variants import VARIANTS


class TupeConfig(PretrainedConfig):
    """The options of a model, under the names that transformers has for BERT's.

    rel_pos_bins and max_rel_pos are the buckets of relative positions, and the distance from which on the
    last one holds; attention_impl is one of "auto", "reference", "tiles", "sdpa".
    """

    model_type = "tupe"

    def __init__(
        self,
        variant: str = "tupe_r",
        vocab_size: int = 32_769,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        max_position_embeddings: int = 512,
        rel_pos_bins: int = 32,
        max_rel_pos: int = 128,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        activation_dropout: float = 0.0,
        classifier_dropout: float = 0.0,
        attention_impl: str = "auto",
        pad_token_id: int = 1,
        bos_token_id: int = 0,
        eos_token_id: int = 2,
        **others: Any,
    ) -> None:
        self.variant = variant
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.rel_pos_bins = rel_pos_bins
        self.max_rel_pos = max_rel_pos
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.activation_dropout = activation_dropout
        self.classifier_dropout = classifier_dropout
        self.attention_impl = attention_impl
        others.setdefault("tie_word_embeddings", False)  # the head takes the embeddings: no weight twice
        super().__init__(
            pad_token_id=pad_token_id, bos_token_id=bos_token_id, eos_token_id=eos_token_id, **others
        )


class TupePreTrainedModel(PreTrainedModel):
    """What all models share."""

    config_class = TupeConfig
    base_model_prefix = "tupe"

    def _init_weights(self, module: nn.Module) -> None:
        init_weights(module)
        if isinstance(module, RelativePositions):  # no weight, so that no file has it
            module.bucket.copy_(module.buckets())


class TupeModel(TupePreTrainedModel):
    """The encoder."""

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.encoder = TupeEncoder(
            EncoderConfig(
                variant=VARIANTS[config.variant],
                vocab_size=config.vocab_size,
                padding_idx=config.pad_token_id,
                layers=config.num_hidden_layers,
                embed_dim=config.hidden_size,
                ffn_dim=config.intermediate_size,
                num_heads=config.num_attention_heads,
                max_positions=config.max_position_embeddings,
                num_buckets=config.rel_pos_bins,
                max_distance=config.max_rel_pos,
                dropout=config.hidden_dropout_prob,
                attention_dropout=config.attention_probs_dropout_prob,
                activation_dropout=config.activation_dropout,
                attention_impl=config.attention_impl,
            )
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embeddings (V, D)."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Puts others in their place."""
        self.encoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Features (B, T, D) of tokens (B, T) that begin with ``<s>``.

        attention_mask (B, T), 0 at padding, may hide tokens at the end of rows, in place of padding tokens.
        """
        if attention_mask is not None:
            input_ids = input_ids.masked_fill(attention_mask == 0, self.config.pad_token_id)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        features, hiddens = self.encoder(input_ids, bool(wanted))
        return BaseModelOutput(last_hidden_state=features, hidden_states=tuple(hiddens) or None)


class TupeForMaskedLM(TupePreTrainedModel):
    """The encoder with the masked LM's head."""

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.tupe = TupeModel(config)
        self.lm_head = LMHead(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        """Logits (B, T, V), and with labels (B, T) the mean loss where they are not -100."""
        out = self.tupe(input_ids, attention_mask, output_hidden_states, return_dict=True)
        logits = self.lm_head(out.last_hidden_state, self.tupe.encoder.embed_tokens.weight)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


class TupeForSequenceClassification(TupePreTrainedModel):
    """The encoder with a sentence head; with one label, regression."""

    def __init__(self, config: TupeConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.tupe = TupeModel(config)
        self.classifier = SentenceHead(config.hidden_size, config.num_labels, config.classifier_dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Logits (B, labels), and with labels (B,) the mean loss: cross entropy, or the squared error."""
        out = self.tupe(input_ids, attention_mask, output_hidden_states, return_dict=True)
        logits, loss = self.classifier(out.last_hidden_state), None
        if labels is not None and self.num_labels == 1:
            loss = F.mse_loss(logits[:, 0].float(), labels.float())
        elif labels is not None:
            loss = F.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
