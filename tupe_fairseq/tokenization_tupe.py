"""The tokenizer for Hugging Face's transformers; `export_hf` writes this file beside it."""

from __future__ import annotations

import re
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import sentencepiece
from transformers import PreTrainedTokenizerFast

# Characters for private use. No vocabulary has them, and one is as unknown as the other.
MARK, _UNKNOWN = "\ue000", "\ue001"


class TupeTokenizerFast(PreTrainedTokenizerFast):
    """A fast tokenizer whose ids are SentencePiece's on any text.

    `tokenizers` can read SentencePiece's rules of normalisation, but applies them to a letter with all its
    accents as one, and so loses accents of which no rule knows. Here SentencePiece normalises, and
    `tokenizers` finds the pieces; offsets count in the normalised text.
    """

    vocab_files_names: ClassVar = {"spm_file": "spm.model", "tokenizer_file": "tokenizer.json"}

    def _encode_plus(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        return super()._encode_plus(self.normalize(text), self.normalize(text_pair), **options)

    def normalize(self, text: Any) -> Any:
        """The text as SentencePiece reads it, ``<mask>`` kept; of a list, that of every text in it.

        What else looks like a special token is text: a mark breaks it, and the backend takes that out.
        """
        if isinstance(text, (list, tuple)):
            return type(text)(map(self.normalize, text))
        if text is None:
            return None
        first, *rest = text.split(self.mask_token)
        behind = [self._words(MARK + part)[2:] for part in rest]  # goes on: no space that the text has not
        return self.mask_token.join([self._words(first), *behind])

    def _words(self, text: str) -> str:
        words = self._sentencepiece.normalize(text).replace("▁", " ").replace(MARK, _UNKNOWN)
        return self._special.sub(f"<{MARK}", words)

    @cached_property
    def _sentencepiece(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_file=str(self.init_kwargs["spm_file"]))

    @cached_property
    def _special(self) -> re.Pattern[str]:
        return re.compile(f"<(?={'|'.join(re.escape(name[1:]) for name in self.all_special_tokens)})")

    def _save_pretrained(self, save_directory: Any, *args: Any, **options: Any) -> tuple[str, ...]:
        files = super()._save_pretrained(save_directory, *args, **options)
        there, here = (
            Path(save_directory, self.vocab_files_names["spm_file"]),
            Path(self.init_kwargs["spm_file"]),
        )
        if there.resolve() != here.resolve():
            shutil.copyfile(here, there)
        return (*files, str(there))
