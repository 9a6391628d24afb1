"""Vector math: elementary and special functions on lanes, from polynomials of our own.

:func:`apply` calls a function that is written into the module on first use; see :mod:`lezero.codegen.math_tools` for
the techniques and error bounds.
"""

from __future__ import annotations

from lezero.codegen import elementary, special, trigonometry
from lezero.codegen.math_tools import FUNCTIONS, apply, function, repeat_while
from lezero.codegen.values import Builder, X


def integer_power(b: Builder, x: X, y: X, unsigned: bool) -> X:
    """x**y by repeated squaring, wrapping; a negative power gives 0 unless x is 1 or -1."""
    return apply(b, "unsigned_power" if unsigned else "signed_power", x, y)


@function
def unsigned_power(b: Builder, x: X, y: X) -> X:
    result, _, _ = repeat_while(
        b,
        (x.like(1), x, y),
        lambda result, base, left: left.ne(0),
        lambda result, base, left: ((left & 1).ne(0).where(result * base, result), base * base, left.lshr(1)),
    )
    return result


@function
def signed_power(b: Builder, x: X, y: X) -> X:
    negative = y < 0
    # For 1 and -1 only the parity of the power matters; for the others 1/x truncates to 0.
    result = unsigned_power(b, x, negative.where(y & 1, y))
    return (negative & (x.ne(1) & x.ne(-1))).where(0, result)


__all__ = ["FUNCTIONS", "apply", "elementary", "integer_power", "special", "trigonometry"]
