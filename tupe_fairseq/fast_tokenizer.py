"""The vocabulary as a tokenizer of Hugging Face's `tokenizers`, the backend of `tokenization_tupe`."""

from __future__ import annotations

from pathlib import Path

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .tokenization_tupe import MARK
from .vocabulary import BOS, EOS, MASK, MODEL_FILE, SPECIALS, UNK, Vocabulary


def fast_tokenizer(folder: Path) -> Tokenizer:
    """A tokenizer with the pieces, ids and merges of the folder's vocabulary, for normalised text.

    Rows are ``<s> A </s>``, and ``<s> A </s> </s> B </s>``. ``<mask>`` in a text is the token.

    Raises:
        FileNotFoundError, ValueError: as `Vocabulary`.
        ValueError: the vocabulary is not of byte-pair merges alone, as prepare_corpus.sh makes it.
    """
    pieces = Vocabulary(folder).pieces
    proto = ModelProto.FromString((folder / MODEL_FILE).read_bytes())
    spec = proto.trainer_spec
    if spec.model_type != spec.BPE or spec.byte_fallback:
        raise ValueError(
            f"{folder / MODEL_FILE} is no BPE model without byte fallback, and would have other ids there; "
            "export models of vocabularies that scripts/prepare_corpus.sh made"
        )
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(ids, _merges(proto), unk_token=SPECIALS[UNK], fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(MARK, "")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    bos, eos = SPECIALS[BOS], SPECIALS[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, BOS), (eos, EOS)],
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    tokenizer.add_tokens([AddedToken(MASK, normalized=False)])
    return tokenizer


def _merges(proto: ModelProto) -> list[tuple[str, str]]:
    """Pairs of neighbours in the order in which SentencePiece joins them: by the score of what they make."""
    scores = {piece.piece: piece.score for piece in proto.pieces[len(SPECIALS) :]}
    pairs = [
        (-score, len(piece[:cut]), piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [(left, right) for _, _, left, right in sorted(pairs)]
