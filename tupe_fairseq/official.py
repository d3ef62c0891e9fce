"""The parameters of the authors' model (guolinke/TUPE, commit 4c64ff7): their names, shapes and our names.

Sizes: V vocabulary, D width, F inner width, H heads, P rows of the position table (positions + 1), C outputs.
"""

from __future__ import annotations

from collections.abc import Iterable

# Their name, ours, the shape of the weight. A star is "weight" and "bias"; the bias has the first size alone.
ENCODER = (  # decoder.sentence_encoder.NAME -> encoder.NAME
    ("embed_tokens.weight", "embed_tokens.weight", "V D"),
    ("emb_layer_norm.*", "embed_layer_norm.*", "D"),
    ("pos.weight", "position_bias.absolute.embedding.weight", "P D"),
    ("pos_ln.*", "position_bias.absolute.layer_norm.*", "D"),
    ("pos_q_linear.*", "position_bias.absolute.query.*", "D D"),
    ("pos_k_linear.*", "position_bias.absolute.key.*", "D D"),
)
RELATIVE = (("relative_attention_bias.weight", "position_bias.relative.embedding.weight", "33 H"),)  # TUPE-R
LAYER = (  # decoder.sentence_encoder.layers.I.NAME -> encoder.layers.I.NAME
    ("self_attn.in_proj_*", "self_attn.in_proj.*", "3D D"),
    ("self_attn.out_proj.*", "self_attn.out_proj.*", "D D"),
    ("self_attn_layer_norm.*", "self_attn_layer_norm.*", "D"),
    ("fc1.*", "fc1.*", "F D"),
    ("fc2.*", "fc2.*", "D F"),
    ("final_layer_norm.*", "final_layer_norm.*", "D"),
)
LM_HEAD = (  # decoder.lm_head.NAME -> lm_head.NAME
    ("*", "*", "V D"),
    ("dense.*", "dense.*", "D D"),
    ("layer_norm.*", "layer_norm.*", "D"),
)
SENTENCE_HEAD = (("dense.*", "dense.*", "D D"), ("out_proj.*", "out_proj.*", "C D"))  # classification_heads.X

EMBEDDINGS, TIED = "decoder.sentence_encoder.embed_tokens.weight", "decoder.lm_head.weight"
POSITIONS = "decoder.sentence_encoder.pos.weight"
RELATIVE_POSITIONS = "decoder.sentence_encoder.relative_attention_bias.weight"

# Fixed in their code; the table has one row more than buckets.
BUCKETS = {"rel_pos_bins": 32, "max_rel_pos": 128}


def parameters(layers: int, relative: bool, heads: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Each parameter of their model: our name, and its shape in words, a size each."""
    encoder = "decoder.sentence_encoder."
    parts = [(encoder, "encoder.", ENCODER + (RELATIVE if relative else ()))]
    parts += [(f"{encoder}layers.{i}.", f"encoder.layers.{i}.", LAYER) for i in range(layers)]
    parts += [("decoder.lm_head.", "lm_head.", LM_HEAD)]
    for head in heads:
        rows = tuple((theirs, ours, shape.replace("C", f"C.{head}")) for theirs, ours, shape in SENTENCE_HEAD)
        parts += [(f"classification_heads.{head}.", f"classification_heads.{head}.", rows)]
    found = {}
    for of_theirs, of_ours, rows in parts:
        for theirs, ours, shape in rows:
            for kind, size in (("weight", shape), ("bias", shape.split()[0])):
                if kind == "weight" or theirs.endswith("*"):
                    found[of_theirs + theirs.replace("*", kind)] = (
                        of_ours + ours.replace("*", kind),
                        size,
                    )
    return found
