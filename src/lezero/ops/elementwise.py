"""Every element-wise operation under one roof."""

# ruff: noqa: F401, I001 -- a face: names are imported for others to import

from lezero.ops.arithmetic import (
    abs, add, addcmul, cast, ceil, clamp, clamp_max, clamp_min, copysign, detach, div, floor, floor_divide, fmod, frac,
    identity, integer_power, lerp, maximum, minimum, mul, neg, pow, reciprocal, remainder, round, sign, square, sub, trunc,
    variable,
)  # fmt: skip
from lezero.ops.comparison import (
    bitwise_and, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor, eq, ge, gt, isclose, isfinite, isinf,
    isnan, le, logical_and, logical_not, logical_or, logical_or_bitwise_not, logical_xor, lt, masked_fill, nan_to_num, ne,
    where,
)  # fmt: skip
from lezero.ops.complexes import complex, conj, imag, real
from lezero.ops.functions import (
    acos, acosh, angle, asin, asinh, atan, atan2, atanh, cos, cosh, digamma, erf, erfc, exp, exp2, expm1, hypot, lgamma,
    log, log1p, log2, log10, logaddexp, rsqrt, sigmoid, sin, sinh, sqrt, tan, tanh, trigamma,
)  # fmt: skip
