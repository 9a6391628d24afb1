"""Python's operators for everything operations apply to: Tensors, and the Exprs that passes build graphs from."""

from __future__ import annotations

from typing import Any

from lezero.ops.base import REGISTRY


def _unary(name: str):
    def method(self):
        return self._apply(REGISTRY[name], (self,), ())

    return method


def _binary(name: str):
    def method(self, other):
        if not self._accepts(other):
            return NotImplemented
        return self._apply(REGISTRY[name], (self, other), ())

    return method


def _reflected(name: str):
    def method(self, other):
        if not self._accepts(other):
            return NotImplemented
        return self._apply(REGISTRY[name], (other, self), ())

    return method


class Operand:
    """Mixin: subclasses provide ``_apply(op, operands, attrs)``, ``_accepts(other)``, ``shape`` and ``dtype``."""

    __slots__ = ()

    def _apply(self, op: Any, operands: tuple, attrs: tuple) -> Any:
        raise NotImplementedError

    def _accepts(self, other: Any) -> bool:
        return isinstance(other, (bool, int, float, complex, Operand))

    __neg__ = _unary("neg")
    __abs__ = _unary("abs")
    __invert__ = _unary("logical_or_bitwise_not")
    __add__ = _binary("add")
    __radd__ = _reflected("add")
    __sub__ = _binary("sub")
    __rsub__ = _reflected("sub")
    __mul__ = _binary("mul")
    __rmul__ = _reflected("mul")
    __truediv__ = _binary("div")
    __rtruediv__ = _reflected("div")
    __floordiv__ = _binary("floor_divide")
    __rfloordiv__ = _reflected("floor_divide")
    __mod__ = _binary("remainder")
    __rmod__ = _reflected("remainder")

    def __pow__(self, other):
        # x**2, x**3 … with a number in the code are products: exact, and far cheaper than pow
        if type(other) is int and 0 <= other <= 8:
            return self._apply(REGISTRY["integer_power"], (self,), (other,))
        if not self._accepts(other):
            return NotImplemented
        if type(other) is int and other < 0 and self.dtype.kind in "iu":
            raise ValueError(f"pow: integers have no powers of negative exponents such as {other}; x.float() has")
        return self._apply(REGISTRY["pow"], (self, other), ())

    __rpow__ = _reflected("pow")
    __and__ = _binary("bitwise_and")
    __rand__ = _reflected("bitwise_and")
    __or__ = _binary("bitwise_or")
    __ror__ = _reflected("bitwise_or")
    __xor__ = _binary("bitwise_xor")
    __rxor__ = _reflected("bitwise_xor")
    __lshift__ = _binary("bitwise_left_shift")
    __rshift__ = _binary("bitwise_right_shift")
    __eq__ = _binary("eq")
    __ne__ = _binary("ne")
    __lt__ = _binary("lt")
    __le__ = _binary("le")
    __gt__ = _binary("gt")
    __ge__ = _binary("ge")
    __matmul__ = _binary("matmul")
    __rmatmul__ = _reflected("matmul")
    __hash__ = object.__hash__
