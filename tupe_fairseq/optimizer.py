"""The optimizer ``fused_adamw`` of fairseq, and what its --selective-weight-decay spares."""

# No "from __future__ import annotations" here: fairseq reads the types of the fields, not their names.

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional, Union  # noqa: UP035  (fairseq's parser looks for "List")

from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, adam, register_optimizer
from omegaconf import II
from torch import Tensor, nn

from .adamw import MOMENTS, FusedAdamW

logger = logging.getLogger(__name__)

NO_DECAY = "no_decay"


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """The options of fairseq's ``adam``, and one more."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas for Adam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for Adam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    selective_weight_decay: bool = field(
        default=False,
        metadata={"help": "no weight decay on biases, LayerNorms, rows of positions and the relative table"},
    )
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


def mark_no_decay(model: Any) -> None:
    """Marks what --selective-weight-decay spares: all vectors, and all tables but that of words.

    An optimizer of fairseq gets parameters without names. The attribute is one that fairseq copies with them.
    """
    words = model.encoder.embed_tokens
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    for parameter in model.parameters():
        if parameter.dim() == 1 or any(parameter is table for table in tables):
            parameter.param_group = NO_DECAY


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FairseqAdam(adam.FairseqAdam):
    """fairseq's Adam in less than half the time.

    It bears the name of fairseq's own class because checkpoints hold that name, and fairseq goes on only
    under the same one: as updates and state are the same, a run may change from either to the other.

    A factor on the gradients is kept until the step, whose kernel applies it, so that multiplying and
    clipping do not walk over all gradients; until then, they are without it.

    Raises:
        ValueError: an option is impossible here; the sentence names the way out.
    """

    def __init__(self, cfg: Any, params: Iterable[nn.Parameter]) -> None:
        FairseqOptimizer.__init__(self, cfg)  # the one between would build fairseq's Adam
        params = list(params)
        spared = [p for p in params if getattr(p, "param_group", None) == NO_DECAY]
        if not cfg.selective_weight_decay:
            spared = []
        elif not spared:
            raise ValueError(
                "--selective-weight-decay finds none of the parameters that it spares: with --fp16, add "
                "--fp16-no-flatten-grads, which keeps them apart, and use a model and a task of this plugin"
            )
        if spared:
            logger.info("weight decay spares %d of %d tensors", len(spared), len(params))
        self._optimizer = FusedAdamW(params, spared, **self.optimizer_config)

    @property
    def optimizer(self) -> FusedAdamW:
        """What updates, as a torch optimizer."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, other: Any) -> None:
        raise ValueError(
            "--zero-sharding shards --optimizer adam, not fused_adamw; give that, or leave it out"
        )

    def multiply_grads(self, c: Union[float, Tensor]) -> None:
        """Multiplies all gradients by c, when they are used."""
        self._optimizer.factor = self._optimizer.factor * c

    def clip_grad_norm(
        self, max_norm: float, aggregate_norm_fn: Optional[Callable[[Tensor], Tensor]] = None
    ) -> Tensor:
        """The norm of all gradients, which are then cut to ``max_norm`` unless that is 0."""

        def scaled(norm: Tensor) -> Tensor:
            norm = norm * self._optimizer.factor
            return norm if aggregate_norm_fn is None else aggregate_norm_fn(norm)

        norm = utils.clip_grad_norm_(self.params, 0, scaled)  # 0: the norm alone
        if max_norm > 0:
            self.multiply_grads((float(max_norm) / (norm + 1e-6)).clamp(max=1))
        return norm

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: Any = None) -> None:
        """Takes over the state of either Adam.

        Raises:
            ValueError: it is of another optimizer.
        """
        for state in state_dict["state"].values():
            if state.keys() != {"step", *MOMENTS}:
                raise ValueError(
                    f"the checkpoint's optimizer has the state {', '.join(state)}, not step, exp_avg and "
                    "exp_avg_sq of fairseq's Adam; --reset-optimizer starts without it"
                )
        super().load_state_dict(state_dict, optimizer_overrides)
