"""Half precision: every operation's result is rounded, except where that changes nothing."""

from __future__ import annotations

from lezero.loops import ir

HALF = ("f16", "bf16")
CHOOSING = frozenset(("where", "max", "min", "neg", "abs"))
"""Operations that give one of their operands, or its sign turned."""


class Rounding:
    """Knows which values in f32 are numbers of half precision already."""

    def __init__(self) -> None:
        self._known: dict[tuple[ir.Value, str], bool] = {}

    def rounded(self, value: ir.Value, type: str) -> ir.Value:
        """`value`, of f32, as a number of `type` in f32."""
        return value if self.exact(value, type) else ir.cast(ir.cast(value, type), "f32")

    def narrow(self, value: ir.Value, type: str) -> ir.Value:
        """`value` in `type`, as it is stored."""
        if type == "bf16" and value.type == "f32" and value.op in CHOOSING and self.exact(value, type):
            # Its lower half is zero: nothing is left to round.
            upper = ir.call("shr", ir.Value("bitcast", "i32", (value,)), ir.const(16, "i32"))
            return ir.Value("bitcast", type, (ir.cast(upper, "i16"),))
        return ir.cast(value, type)

    def exact(self, value: ir.Value, type: str) -> bool:
        key = (value, type)
        if key not in self._known:
            self._known[key] = self._exact(value, type)
        return self._known[key]

    def _exact(self, value: ir.Value, type: str) -> bool:
        if value.op == "cast":
            return value.args[0].type == type
        if value.op == "const":
            return ir.number(value) in (0, float("inf"), float("-inf"))
        if value.op in CHOOSING:
            return all(self.exact(x, type) for x in value.args[value.op == "where" :])
        return False
