"""Models of other frameworks."""

from lezero.interop.program import ConversionError
from lezero.interop.torch import from_torch

__all__ = ["ConversionError", "from_torch"]
