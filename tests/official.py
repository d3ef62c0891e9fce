"""The parameter names of the authors' code (guolinke/TUPE, commit 4c64ff7), as ours."""

from __future__ import annotations

import re

RENAMED = {
    r"decoder\.sentence_encoder\.pos\.": "encoder.position_bias.absolute.embedding.",
    r"decoder\.sentence_encoder\.pos_ln\.": "encoder.position_bias.absolute.layer_norm.",
    r"decoder\.sentence_encoder\.pos_q_linear\.": "encoder.position_bias.absolute.query.",
    r"decoder\.sentence_encoder\.pos_k_linear\.": "encoder.position_bias.absolute.key.",
    r"decoder\.sentence_encoder\.relative_attention_bias\.": "encoder.position_bias.relative.embedding.",
    r"decoder\.sentence_encoder\.emb_layer_norm\.": "encoder.embed_layer_norm.",
    r"decoder\.sentence_encoder\.": "encoder.",
    r"decoder\.lm_head\.": "lm_head.",
    r"\.in_proj_(weight|bias)$": r".in_proj.\1",
}
TIED = "decoder.lm_head.weight"  # the token embeddings once more


def our_name(official: str) -> str:
    """Our name of a parameter of the authors' model."""
    for pattern, ours in RENAMED.items():
        official = re.sub(pattern, ours, official)
    return official
