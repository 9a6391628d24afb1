"""Activation functions that write their result to the input, and the one with random slopes."""

from __future__ import annotations

from lezero.nn.functional import activation as act
from lezero.tensor import Tensor


def relu_(input: Tensor) -> Tensor:
    """``relu``, in place"""
    return act.relu(input, inplace=True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """``elu``, in place"""
    return act.elu(input, alpha, inplace=True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """``celu``, in place"""
    return act.celu(input, alpha, inplace=True)


def selu_(input: Tensor) -> Tensor:
    """``selu``, in place"""
    return act.selu(input, inplace=True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """``leaky_relu``, in place"""
    return act.leaky_relu(input, negative_slope, inplace=True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """``hardtanh``, in place"""
    return act.hardtanh(input, min_val, max_val, inplace=True)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """``threshold``, in place"""
    return act.threshold(input, threshold, value, inplace=True)


def rrelu_(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Tensor:
    """``rrelu``, in place"""
    return rrelu(input, lower, upper, training, inplace=True)


def rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """x above 0, else x times a slope: in training uniform between `lower` and `upper`, otherwise their mean (Xu et al. 2015)."""
    from lezero.nn.functional.dropout import placed
    from lezero.tensor import rand, where

    if lower > upper:
        raise ValueError(f"rrelu: lower={lower} is above upper={upper}")
    if not training:
        return act.leaky_relu(input, (lower + upper) / 2, inplace)
    slope = rand(input.shape, dtype=input.dtype) * (upper - lower) + lower
    return placed(where(input > 0, input, input * slope), input, inplace)
