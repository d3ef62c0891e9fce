"""fairseq's Adam on torch's fused kernel.

Update k of a parameter p with gradient g is that of fairseq's ``adam``:

    p *= 1 - lr * weight_decay
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    p -= lr * sqrt(1 - b2^k) / (1 - b1^k) * m / (sqrt(v) + eps)

The kernel divides by ``sqrt(v) / sqrt(1 - b2^k) + eps`` instead, so it is given ``eps / sqrt(1 - b2^k)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")  # m and v; the state of a parameter is these and k, "step"


class FusedAdamW(torch.optim.Optimizer):
    """The updates; state and options have the form of fairseq's Adam.

    Args:
        params: what to train.
        spared: those of them without weight decay. That is no part of the state: a run that goes on has what
            its own flags say.
        options: lr, betas, eps, weight_decay.

    Raises:
        ValueError: the betas are no two numbers below 1, or torch has no fused kernel for a device.
    """

    supports_memory_efficient_fp16 = True
    supports_flat_params = True

    def __init__(
        self, params: Sequence[nn.Parameter], spared: Iterable[nn.Parameter] = (), **options: Any
    ) -> None:
        betas = options["betas"]
        numbers = isinstance(betas, (list, tuple)) and [b for b in betas if isinstance(b, (int, float))]
        if not (numbers and len(numbers) == len(betas) == 2 and all(0 <= b < 1 for b in numbers)):
            raise ValueError(f"--adam-betas must be two numbers from 0 to below 1, not {betas}")
        for device in {p.device for p in params}:
            check_kernel(device)
        super().__init__(params, {**options, "amsgrad": False})
        self.spared = set(spared)
        self.factor: float | Tensor = 1.0  # of all gradients; the next step applies it

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, and the factor on them."""
        super().zero_grad(set_to_none)
        self.factor = 1.0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter with a gradient.

        Raises:
            ValueError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in self._batches(group["params"]):
                self._update(params, group)
        self.factor = 1.0
        return loss

    def _batches(self, params: Sequence[nn.Parameter]) -> Collection[list[nn.Parameter]]:
        """Parameters that one call of the kernel can update; begins their state, and counts the update."""
        batches: dict[Any, list[nn.Parameter]] = defaultdict(list)
        for p in params:
            if p.grad is None:
                continue
            if p.grad.layout is not torch.strided:
                raise ValueError("--optimizer fused_adamw takes no sparse gradients; make them dense")
            state, dtype = self.state[p], _exact(p)
            if not state:
                state["step"] = 0
                for name in MOMENTS:
                    state[name] = torch.zeros(p.shape, dtype=dtype, device=p.device)
            state["step"] += 1
            alone = p if p.dtype != dtype else None  # half precision: copies of one at a time
            batches[state["step"], p in self.spared, p.device, dtype, alone].append(p)
        return batches.values()

    def _update(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Updates a batch. The kernel takes memory as it lies, so all of it must be contiguous."""
        dtype, device, states = _exact(params[0]), params[0].device, [self.state[p] for p in params]
        for state in states:  # fairseq may have loaded them in another precision, and on another device
            state.update({name: state[name].to(device, dtype).contiguous() for name in MOMENTS})
        weights = [p.to(dtype).contiguous() for p in params]  # themselves, or copies
        grads = [p.grad.to(dtype).contiguous() for p in params if p.grad is not None]
        scale = None
        if dtype != torch.float32:  # the kernel takes a float32, too coarse for these
            grads = [grad * self.factor for grad in grads]
        elif isinstance(self.factor, Tensor) or self.factor != 1:
            scale = 1 / torch.as_tensor(self.factor, dtype=dtype, device=device)
        if group["weight_decay"] and params[0] not in self.spared:
            torch._foreach_add_(weights, weights, alpha=-group["lr"] * group["weight_decay"])
        moments = [[state[name] for state in states] for name in MOMENTS]
        kernel([weights, grads, *moments], states[0]["step"], scale, group)
        for p, weight in zip(params, weights):
            if weight is not p:
                p.copy_(weight)


def _exact(parameter: Tensor) -> torch.dtype:
    """The precision of its updates: float32 for half precision, as in fairseq."""
    return torch.promote_types(parameter.dtype, torch.float32)


def kernel(
    tensors: Sequence[list[Tensor]], step: int, grad_scale: Tensor | None, options: Mapping[str, Any]
) -> None:
    """One update, in place.

    Args:
        tensors: p, g, m and v, a list each, all of one device and precision.
        step: k.
        grad_scale: a float32 that the gradients are divided by, in place.
        options: lr, betas and eps of fairseq's formula. Decay is not left to the kernel: on the CPU it rounds
            ``1 - lr * weight_decay`` to float32, and at a rate of 2e-5 weights would decay by 5% less.
    """
    weights, grads, exp_avgs, exp_avg_sqs = tensors
    before = torch.full((len(weights),), float(step - 1), device=weights[0].device)  # torch adds one
    beta1, beta2 = options["betas"]
    adamw(
        weights,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs=[],
        state_steps=list(before.unbind()),
        fused=True,
        grad_scale=grad_scale,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=options["lr"],
        weight_decay=0.0,
        eps=options["eps"] / (1 - beta2**step) ** 0.5,
        maximize=False,
    )


def check_kernel(device: torch.device) -> None:
    """Tries the kernel on one number.

    Raises:
        ValueError: it does not exist here, or does not divide by ``grad_scale``.
    """
    p, g, m, v = ([number] for number in torch.tensor([1.0, 2.0, 0.0, 0.0], device=device).split(1))
    options = {"lr": 0.0, "betas": (0.5, 0.5), "eps": 1.0}
    try:
        kernel([p, g, m, v], 1, torch.tensor(2.0, device=device), options)
        works = m[0].item() == 0.5
    except (RuntimeError, TypeError):
        works = False
    if not works:
        raise ValueError(
            f"torch {torch.__version__} has no fused AdamW for the device {device.type}; give --optimizer "
            "adam, which makes the same updates and goes on from the same checkpoints"
        )
