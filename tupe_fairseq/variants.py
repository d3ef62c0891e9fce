"""The models of the paper's Table 1 (Ke, He, Liu, ICLR 2021, arXiv:2006.15595), and what they are made of.

One row a model. The torch-only core builds exactly what the row says; a new model is a new row and, if it has
a new ingredient, its formula in ``positional.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """How a model knows where its words stand.

    x_i is what a layer receives at position i, w_i the word's embedding, p_i the position's, d the width of a
    head.

    Raises:
        ValueError: the row asks for something that its other ingredients do not give.
    """

    equation: str  # of the attention logits, in a sentence for the reader
    at_input: bool = False  # x_i = w_i + p_i in front of the first layer
    untied: bool = False  # p_i have projections of their own, U_Q and U_K, shared by all layers
    cross_terms: bool = False  # word-to-position and position-to-word products beside the other two
    relative: bool = False  # plus T5's bias b, one number a head and bucket of j - i
    reset: bool = False  # row and column of [CLS] are constants of their own, theta1 and theta2
    terms: int = 1  # products of width d in a logit, which is scaled by 1 / sqrt(terms * d)

    def __post_init__(self) -> None:
        if self.cross_terms and not self.untied:
            raise ValueError("cross_terms are products with untied positions; the row needs untied=True")
        if self.reset and (self.cross_terms or not (self.untied or self.relative)):
            raise ValueError("reset is of a term without words; the row has none, or mixes it with words")


VARIANTS = {
    "bert_a": Variant(
        "BERT with absolute positions added at the input (equation 3)",
        at_input=True,
    ),
    "bert_r": Variant(
        "`bert_a` plus T5's relative bias in every layer (equation 5)",
        at_input=True,
        relative=True,
    ),
    "bert_a_d": Variant(
        "all four products of words and positions (equation 6), with projections of their own for positions",
        untied=True,
        cross_terms=True,
        terms=4,
    ),
    "tupe_a": Variant(
        "words with words plus positions with positions (equation 7), [CLS] untied (equations 10 and 11)",
        untied=True,
        reset=True,
        terms=2,
    ),
    "tupe_r": Variant(
        "`tupe_a` plus T5's relative bias (equation 8), [CLS] untied (equations 10 and 11)",
        untied=True,
        relative=True,
        reset=True,
        terms=2,
    ),
    "tupe_a_tie_cls": Variant(
        "`tupe_a` with [CLS] treated like any other position (equation 7 alone)",
        untied=True,
        terms=2,
    ),
    "tupe_r_tie_cls": Variant(
        "`tupe_r` with [CLS] treated like any other position (equation 8 alone); not in the paper's table",
        untied=True,
        relative=True,
        terms=2,
    ),
}
