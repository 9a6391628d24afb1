"""The Python array API standard, revision 2025.12: what ``tensor.__array_namespace__()`` gives.

    xp = x.__array_namespace__()
    y = xp.sum(xp.exp(x), axis=-1, keepdims=True)

Names, arguments and results are the standard's, where ``lezero``'s own follow PyTorch.  Nothing computes at once: functions
record, gradients included.  ``linalg`` and ``fft`` are the standard's extensions.
"""

from math import e, inf, nan, pi

from lezero.array_api import fft, linalg
from lezero.array_api.creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, linspace, meshgrid, ones, ones_like, tril, triu, zeros,
    zeros_like,
)  # fmt: skip
from lezero.array_api.dtypes import astype, can_cast, finfo, iinfo, isdtype, result_type
from lezero.array_api.elementwise import (
    abs, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or,
    bitwise_right_shift, bitwise_xor, ceil, clip, conj, copysign, cos, cosh, divide, equal, exp, expm1, floor, floor_divide,
    greater, greater_equal, hypot, imag, isfinite, isinf, isnan, less, less_equal, log, log1p, log2, log10, logaddexp,
    logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply, negative, nextafter, not_equal, positive, pow,
    real, reciprocal, remainder, round, sign, signbit, sin, sinh, sqrt, square, subtract, tan, tanh, trunc,
)  # fmt: skip
from lezero.array_api.info import __array_namespace_info__
from lezero.array_api.linalg import matmul, matrix_transpose, tensordot, vecdot
from lezero.array_api.reductions import (
    all, any, cumulative_prod, cumulative_sum, diff, max, mean, min, prod, std, sum, var,
)  # fmt: skip
from lezero.array_api.searching import (
    argmax, argmin, argsort, count_nonzero, isin, nonzero, searchsorted, sort, unique_all, unique_counts, unique_inverse,
    unique_values, where,
)  # fmt: skip
from lezero.array_api.shapes import (
    broadcast_arrays, broadcast_shapes, broadcast_to, concat, expand_dims, flip, moveaxis, permute_dims, repeat, reshape, roll,
    squeeze, stack, take, take_along_axis, tile, unstack,
)  # fmt: skip
from lezero.graph.dtype import (
    bfloat16, complex64, complex128, float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)  # fmt: skip
from lezero.graph.dtype import bool_ as bool

__array_api_version__ = "2025.12"
newaxis = None
