"""Dropout layers.  ``inplace=True`` writes the result to the input and returns it."""

from __future__ import annotations

from typing import Any

from lezero.nn import functional as F
from lezero.nn.module import Module
from lezero.tensor import Tensor


class _Dropout(Module):
    function: Any

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{type(self).__name__}: p is a probability between 0 and 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace=True" if self.inplace else f"p={self.p}"


class Dropout(_Dropout):
    """In training, zero with probability `p` and ``x / (1 - p)`` otherwise (Srivastava et al. 2014)."""

    function = staticmethod(F.dropout)


class Dropout1d(_Dropout):
    """Drops whole channels of (batch, channels, length)."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """Drops whole channels of (batch, channels, height, width)."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_Dropout):
    """Drops whole channels of (batch, channels, depth, height, width)."""

    function = staticmethod(F.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout for networks of SELUs: mean and variance stay."""

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """:class:`AlphaDropout` of whole channels of (batch, channels, ...)."""

    function = staticmethod(F.feature_alpha_dropout)
