"""Models of other frameworks."""

from lezero.interop.torch import ConversionError, from_torch

__all__ = ["ConversionError", "from_torch"]
