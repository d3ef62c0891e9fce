"""A trained model in three lines, as fairseq's RoBERTa has it.

    from tupe_fairseq.model import TupeModel
    tupe = TupeModel.from_pretrained("runs/small")
    tupe.fill_mask("The capital of France is <mask>.")

Shapes: B sentences, T tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .vocabulary import BOS, EOS, MASK, PAD, UNK, Vocabulary

WORD_MARK = "▁"  # SentencePiece's, at the begin of a piece that begins a word
_UNKNOWN = "\ue000"  # for private use: cleaning drops it, so that no vocabulary has it


class Filled(NamedTuple):
    """A guess for a mask."""

    text: str
    probability: float
    token: str  # with a space in front if it begins a word


class TupeHubInterface(nn.Module):
    """Text in, tokens, features, predictions and guesses out; runs where the model is.

    Names and results are those of ``fairseq.models.roberta.RobertaHubInterface``; where that takes a
    sentence, a list of them will do here.
    """

    def __init__(self, model: Any, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.model = model
        self.vocabulary = vocabulary
        self.mask_idx = len(vocabulary)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def encode(self, sentence: str | Sequence[str], *addl_sentences: str) -> Tensor:
        """Tokens of a sentence, ``<s> A </s>``, or of a pair, ``<s> A </s> </s> B </s>``.

        Special names in the text are text, but for ``<mask>``, which is the token.

        Args:
            sentence: text; or several, which are padded to the longest.
            addl_sentences: a second sentence, and more; of one text only.

        Returns:
            (T,) int64 on the CPU; for several (B, T).
        """
        if isinstance(sentence, str):
            ids = [BOS, *self._ids(sentence), EOS]
            for other in addl_sentences:
                ids += [EOS, *self._ids(other), EOS]
            return torch.tensor(ids)
        if addl_sentences:
            raise ValueError("several sentences are encoded alone; encode pairs one by one")
        return pad_sequence([self.encode(one) for one in sentence], batch_first=True, padding_value=PAD)

    def _ids(self, text: str) -> list[int]:
        """Ids of a text; what follows a mask without a space goes on with its word."""
        first, *rest = text.split(MASK)
        ids = self.vocabulary.encode(first)
        for part in rest:
            ids += [self.mask_idx, *self._ids_behind_mask(part)]
        return ids

    def _ids_behind_mask(self, part: str) -> list[int]:
        first = self.vocabulary.normalize(_UNKNOWN + part)[2:3]
        if first in ("", WORD_MARK):
            return self.vocabulary.encode(part)
        inside = self.vocabulary.encode(_UNKNOWN + part)
        one = UNK in self.vocabulary.encode(first)  # with _UNKNOWN, as neighbours are
        return inside[inside.index(UNK) + (0 if one else 1) :]

    def decode(self, tokens: Tensor) -> str | list[str]:
        """The lower-cased text of one row (T,), without ``<s>`` and padding; of a pair a list of two."""
        ids = [i for i in tokens.tolist() if i not in (BOS, PAD)]
        sentences: list[list[int]] = [[]]
        for before, i in zip([None, *ids], ids):
            if i != EOS:
                sentences[-1].append(i)
            elif before == EOS:
                sentences.append([])
        texts = [self._text(sentence) for sentence in sentences]
        return texts[0] if len(texts) == 1 else texts

    def _text(self, ids: list[int]) -> str:
        if self.mask_idx not in ids:
            return self.vocabulary.decode(ids)
        pieces = [*self.vocabulary.pieces, WORD_MARK + MASK]
        return "".join(pieces[i] for i in ids).replace(WORD_MARK, " ").strip()

    def extract_features(self, tokens: Tensor, return_all_hiddens: bool = False) -> Tensor | list[Tensor]:
        """The last layer's output (B, T, D) for tokens (T,) or (B, T).

        With return_all_hiddens a list: the embeddings, then what every layer gives, (B, T, D) each.

        Raises:
            ValueError: the tokens are more than the model has positions.
        """
        features, extra = self.model(
            self._batch(tokens), features_only=True, return_all_hiddens=return_all_hiddens
        )
        return extra["inner_states"] if return_all_hiddens else features

    def _batch(self, tokens: Tensor) -> Tensor:
        return (tokens[None] if tokens.dim() == 1 else tokens).to(self.device)

    def register_classification_head(self, name: str, num_classes: int) -> None:
        """Adds a sentence head with fresh weights, where the model is."""
        self.model.register_classification_head(name, num_classes)
        self.model.to(self.device)

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """A sentence head's log-probabilities (B, classes) for tokens (T,) or (B, T).

        Logits if asked for, and of a head with one output, which is a regression.

        Raises:
            KeyError: there is no such head; the message names those that there are.
        """
        heads = self.model.classification_heads
        if head not in heads:
            raise KeyError(f"no sentence head {head}; there are {', '.join(heads) or 'none'}")
        logits, _ = self.model(self._batch(tokens), classification_head_name=head)
        return logits if return_logits or logits.size(1) == 1 else logits.log_softmax(dim=-1)

    def fill_mask(self, masked_input: str | Sequence[str], topk: int = 5) -> list[Any]:
        """The likeliest tokens in place of ``<mask>``, best first.

        Args:
            masked_input: a text with one ``<mask>``, or several such texts.
            topk: how many to give.

        Returns:
            `Filled`, ``topk`` of them; for several texts a list of such lists.

        Raises:
            ValueError: a text has no mask, or more than one, or more tokens than the model has positions.
        """
        texts = [masked_input] if isinstance(masked_input, str) else list(masked_input)
        for text in texts:
            if text.count(MASK) != 1:
                raise ValueError(f"{text!r:.100} has {text.count(MASK)} times {MASK}; give one in each text")
        if not 1 <= topk <= self.mask_idx:
            raise ValueError(f"topk {topk} does not lie between 1 and the {self.mask_idx:,} pieces")
        tokens = self._batch(self.encode(texts))
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            logits, _ = self.model(tokens, masked_tokens=tokens == self.mask_idx)  # (B, V)
        self.model.train(training)
        best = logits.float().softmax(dim=-1)[:, : self.mask_idx].topk(topk)
        filled = [
            [self._filled(text, i, probability) for i, probability in zip(*row)]
            for text, row in zip(texts, zip(best.indices.tolist(), best.values.tolist()))
        ]
        return filled[0] if isinstance(masked_input, str) else filled

    def _filled(self, text: str, token: int, probability: float) -> Filled:
        piece = self.vocabulary.pieces[token].replace(WORD_MARK, " ")
        before, after = text.split(MASK)
        return Filled(f"{before.rstrip()}{piece}{after}".lstrip(), probability, piece)
