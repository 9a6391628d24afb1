"""Normalisation: batch, layer, group, instance, root mean square; and vectors to unit length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lezero.graph.dtype import float64
from lezero.ops import creation, movement, normalization
from lezero.ops.arithmetic import lerp
from lezero.ops.base import REGISTRY
from lezero.runtime import scalar_input
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.runtime.writes import assign_together
from lezero.tensor import Tensor, no_grad

_ADD = REGISTRY["add"]


def _affine_operands(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
    """The operands of a normalisation; a bias comes after a weight, so a lone one gets a weight of ones."""
    if weight is None:
        if bias is None:
            return (x,)
        weight = creation.full(shape=tuple(bias.shape), value=1, dtype=bias.dtype, like=bias)
    return (x, weight) if bias is None else (x, weight, bias)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
    *,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """Batch normalisation over (batch, channels, ...).

    In training the batch's own statistics are used, and the running ones (where given) move towards them by `momentum`, the
    variance unbiased; otherwise the running ones are used.  `num_batches_tracked` (int64, one element) is increased along
    with them; where it is given and `momentum` is None, they are the means over all batches.

    running_mean, running_var, weight, bias : (channels,), each optional (the running ones in training only)
    eps : added to the variance
    """
    if input.ndim < 2:
        raise ValueError(f"batch_norm: an input (batch, channels, ...) is needed, got shape {tuple(input.shape)}")
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: outside training the running mean and variance are needed")
        operands = _affine_operands(input, weight, bias)
        return record(
            normalization.batch_norm_inference, (operands[0], running_mean, running_var, *operands[1:]), (1, eps)
        )
    shape = input.shape
    if shape[0] == 1 and all(d == 1 for d in shape[2:]):
        raise ValueError(f"batch_norm: more than one value per channel is needed in training, got shape {tuple(shape)}")
    y = record(normalization.batch_norm, _affine_operands(input, weight, bias), (1, eps))
    running = (running_mean, running_var, num_batches_tracked)
    if any(t is not None for t in running):
        grad_mode = STATE.grad_mode
        try:
            STATE.grad_mode = False  # spelled out: no_grad() would take 15 % of the whole call
            _track(input, *running, momentum)
        finally:
            STATE.grad_mode = grad_mode
    return y


def _track(input: Tensor, mean: Tensor | None, var: Tensor | None, count: Tensor | None, momentum: Any) -> None:
    """Move the running statistics, in one go."""
    written, values = [], []
    if count is not None:
        counted = record(_ADD, (count, 1), ())
        written.append(count)
        values.append(counted)
        if momentum is None:
            momentum = 1.0 / counted.to(input.dtype)
    if mean is not None:
        written.append(mean)
        values.append(_moved(mean, record(normalization.batch_mean, (input,), (1,)), momentum))
    if var is not None:
        written.append(var)
        values.append(_moved(var, record(normalization.batch_var, (input,), (1, 1)), momentum))
    assign_together(written, values)


def _moved(running: Tensor, value: Tensor, momentum: Any) -> Tensor:
    weight = momentum if isinstance(momentum, Tensor) else scalar_input(lambda: momentum, float64)
    moved = record(lerp, (running, value, weight), ())
    return moved if moved.dtype is running.dtype else moved.to(running.dtype)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer normalisation over the last dimensions, which are `normalized_shape`.

    weight, bias : of `normalized_shape`, each optional
    eps : added to the variance
    """
    dims = 1 if type(normalized_shape) is int else len(normalized_shape)
    if weight is None:  # otherwise the operation compares the shapes
        _trailing("layer_norm", input, normalized_shape)
    return record(normalization.layer_norm, _affine_operands(input, weight, bias), (dims, eps))


def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Root-mean-square normalisation over the last dimensions, which are `normalized_shape`.

    weight : of `normalized_shape`, optional
    eps : added to the mean square; the dtype's machine epsilon unless given
    """
    dims = _trailing("rms_norm", input, normalized_shape)
    if eps is None:
        eps = float(np.finfo(np.float64 if input.dtype.name == "float64" else np.float32).eps)
    return normalization.rms_norm(*_affine_operands(input, weight, None), dims=dims, eps=eps)


def _trailing(name: str, x: Tensor, shape: int | Sequence[int]) -> int:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"{name}: an input whose last dimensions are {shape} is needed, got shape {tuple(x.shape)}")
    return len(shape)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Group normalisation of (batch, channels, ...).

    num_groups : the groups divide the channels, and each is normalised by itself
    weight, bias : (channels,), each optional
    eps : added to the variance
    """
    return normalization.group_norm(*_affine_operands(input, weight, bias), groups=num_groups, eps=eps)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Instance normalisation of (batch, channels, ...): every channel of every sample by itself.

    use_input_stats : as `training` of ``batch_norm``, whose other parameters are these; running statistics are means over the samples
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.ndim < 3 or input.numel() == input.shape[0] * input.shape[1]:
        raise ValueError(f"instance_norm: more than one value per channel is needed, got shape {tuple(input.shape)}")
    if running_mean is not None and running_var is not None:
        with no_grad():
            axes = tuple(range(2, input.ndim))
            mean = _moved(running_mean, input.mean(axes).mean(0), momentum)
            var = _moved(running_var, input.var(axes, correction=1).mean(0), momentum)
            assign_together((running_mean, running_var), (mean, var))
    return normalization.group_norm(*_affine_operands(input, weight, bias), groups=int(input.shape[1]), eps=eps)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along `dim` divided by their p-norm (at least `eps`)."""
    return input / input.norm(p, dim, keepdim=True).clamp(eps)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Local response normalisation across `size` neighbouring channels (Krizhevsky et al. 2012).

    The input (batch, channels, ...) is divided by ``(k + alpha * mean of squares) ** beta``.
    """
    if input.ndim < 3:
        raise ValueError(
            f"local_response_norm: an input (batch, channels, ...) is needed, got shape {tuple(input.shape)}"
        )
    rest = (0,) * (input.ndim - 2)
    square = movement.pad(input * input, before=(0, size // 2, *rest), after=(0, (size - 1) // 2, *rest))
    channels = input.shape[1]
    total = square.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + square.narrow(1, i, channels)
    return input / (total * (alpha / size) + k) ** beta
