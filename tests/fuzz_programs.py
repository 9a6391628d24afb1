"""Random programs: graphs of element-wise operations, reductions, views and products, with several results kept.

A :class:`Program` is drawn from a seed and is a function of operands, so that the same one runs on tensors and, by the NumPy
references, on Exprs.  Its first `size` steps are a program too, which is how a failure is made small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from lezero.graph.dtype import as_dtype
from lezero.ops.base import REGISTRY
from lezero.ops.expr import leaf

MAX_ELEMENTS = 600
"""Products and broadcasts stay below this."""
SIDES = [1, 2, 3, 4, 5, 7]
LONG = [(90, 3), (70, 2, 2), (3, 66), (4200,), (2, 4100), (1, 300), (300, 1)]
"""Shapes long enough for reductions in several tasks."""


@dataclass
class Program:
    """arrays : the operands; steps : (what to apply, numbers of the values it is applied to); kept : values returned"""

    arrays: list[np.ndarray]
    steps: list[tuple[Callable, tuple[int, ...], str]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def __call__(self, *operands: Any) -> list[Any]:
        values = list(operands)
        for apply, inputs, _ in self.steps:
            values.append(apply(*(values[i] for i in inputs)))
        return [values[k] for k in self.kept]

    def __repr__(self) -> str:
        lines = [f"%{k} = {a.dtype}{list(a.shape)}" for k, a in enumerate(self.arrays)]
        for k, (_, inputs, words) in enumerate(self.steps):
            lines.append(f"%{k + len(self.arrays)} = {words}({', '.join(f'%{i}' for i in inputs)})")
        return "\n".join([*lines, f"return {', '.join(f'%{k}' for k in self.kept)}"])


def program(seed: int, size: int, dtype: Any = np.float64, contractions: bool = True, keep: float = 0.25) -> Program:
    """The first `size` steps of the program with this seed."""
    return _Writer(np.random.default_rng(seed), dtype, contractions).write(size, keep)


class _Writer:
    def __init__(self, rng: np.random.Generator, dtype: Any, contractions: bool):
        self.rng, self.dtype = rng, np.dtype(dtype)
        self.actions = [getattr(self, n) for n, w in WEIGHTS.items() for _ in range(w)]
        if contractions:
            self.actions += [self.dot, self.convolve] * 2

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def write(self, size: int, keep: float) -> Program:
        rng = self.rng
        shapes = []
        base = tuple(self.pick(SIDES) for _ in range(rng.integers(0, 5)))
        if rng.random() < 0.15:
            base = self.pick(LONG)
        for _ in range(rng.integers(1, 4)):
            own = tuple(self.pick([d, d, d, 1]) for d in base)
            shapes.append(own[int(rng.integers(0, len(own) + 1)) if rng.random() < 0.3 else 0 :])
        self.program = Program([np.asarray(rng.uniform(-2, 2, s).astype(self.dtype)) for s in shapes])
        self.exprs = [leaf(a.shape, as_dtype(a.dtype)) for a in self.program.arrays]
        while len(self.program.steps) < size:
            self.pick(self.actions)()
        first = len(self.program.arrays)
        last = len(self.exprs) - 1
        used = {i for _, inputs, _ in self.program.steps for i in inputs}
        chosen = rng.random(size) < keep
        self.program.kept = [k for k in range(first, last + 1) if k not in used or chosen[k - first]]
        return self.program

    def some(self, want: Callable[[Any], bool] = lambda e: True) -> int | None:
        """A value, recent ones more often."""
        fit = [k for k, e in enumerate(self.exprs) if e.dtype.name == self.dtype.name and want(e)]
        return fit[-1 - min(int(self.rng.exponential(2.5)), len(fit) - 1)] if fit else None

    def put(self, apply: Callable, inputs: tuple[int | None, ...], words: str) -> int:
        """Append a step, unless a value it wants does not exist."""
        if None in inputs:
            return len(self.exprs) - 1
        self.exprs.append(apply(*(self.exprs[i] for i in inputs)))
        self.program.steps.append((apply, inputs, words))
        return len(self.exprs) - 1

    def op(self, name: str, inputs: tuple[int | None, ...], **attrs: Any) -> int:
        rule = REGISTRY[name]
        return self.put(lambda *x: rule(*x, **attrs), inputs, f"{name}{attrs or ''}")

    def bounded(self, k: int) -> int:
        return self.op(self.pick(["tanh", "sin", "atan"]), (k,))

    # -- steps -------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        k = self.some()
        self.op(self.pick(["neg", "abs", "sigmoid", "relu", "cos", "tanh", "square", "erf", "silu", "gelu"]), (k,))
        if self.rng.random() < 0.3:
            self.bounded(len(self.exprs) - 1)

    def exponential(self) -> None:
        self.op("exp", (self.bounded(self.some()),))

    def binary(self) -> None:
        a = self.some()
        shape = tuple(self.exprs[a].shape)
        b = self.some(lambda e: _broadcasts(tuple(e.shape), shape))
        name = self.pick(["add", "sub", "mul", "maximum", "minimum", "hypot"])
        self.op(name, (a, b) if self.rng.random() < 0.5 else (b, a))

    def scaled(self) -> None:
        value = self.pick([0.5, -1.25, 3])
        self.put(lambda x: x * value + 1, (self.some(),), f"x*{value}+1 ")

    def select(self) -> None:
        a = self.some()
        shape = tuple(self.exprs[a].shape)
        b = self.some(lambda e: _broadcasts(tuple(e.shape), shape))
        where = REGISTRY["where"]
        self.put(lambda x, y: where(x > y, x * 2, y - x), (a, b), "where(x>y,x*2,y-x)")

    def reduce(self) -> None:
        k = self.some(lambda e: 0 not in e.shape)
        ndim = self.exprs[k].ndim
        axes = tuple(a for a in range(ndim) if self.rng.random() < 0.5)
        if self.rng.random() < 0.2:
            axes = tuple(range(ndim))
        keep = bool(self.rng.random() < 0.5)
        name = self.pick(["sum", "mean", "max", "min", "sum", "logsumexp", "var"])
        attrs = {"axes": axes, "keepdim": keep} | ({"correction": 0} if name == "var" else {})
        r = self.op(name, (k,), **attrs)
        if keep and self.rng.random() < 0.7:  # used again with what it was made from
            self.op(self.pick(["sub", "mul", "add"]), (k, r))

    def normalize(self) -> None:
        k = self.some(lambda e: e.ndim > 0 and 0 not in e.shape)
        if k is not None:
            axis = int(self.rng.integers(self.exprs[k].ndim))
            self.op(self.pick(["softmax", "log_softmax"]), (k,), axis=axis)

    def position(self) -> None:
        k = self.some(lambda e: e.ndim > 0 and 0 not in e.shape)
        if k is not None:
            axis = int(self.rng.integers(self.exprs[k].ndim))
            arg, cast = REGISTRY[self.pick(["argmax", "argmin"])], REGISTRY["cast"]
            self.put(lambda x: cast(arg(x, axes=(axis,), keepdim=True), dtype=x.dtype), (k,), f"{arg.name} {axis} ")

    def count(self) -> None:
        k = self.some()
        cast, total = REGISTRY["cast"], REGISTRY["sum"]
        ndim = self.exprs[k].ndim
        axes = tuple(range(int(self.rng.integers(0, ndim + 1)), ndim))
        self.put(lambda x: cast(total(x > 0.1, axes=axes), dtype=x.dtype), (k,), f"count {axes} ")

    def permute(self) -> None:
        k = self.some(lambda e: e.ndim > 1)
        if k is not None:
            self.op("permute", (k,), axes=tuple(map(int, self.rng.permutation(self.exprs[k].ndim))))

    def reshape(self) -> None:
        k = self.some()
        shape = list(self.exprs[k].shape)
        for _ in range(2):
            if len(shape) > 1 and self.rng.random() < 0.6:
                at = int(self.rng.integers(len(shape) - 1))
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
            elif self.rng.random() < 0.5:
                shape.insert(int(self.rng.integers(len(shape) + 1)), 1)
        for at, d in enumerate(shape):
            if d in (4, 6, 10, 14, 15, 21, 35) and self.rng.random() < 0.3:
                p = next(q for q in (2, 3, 5) if d % q == 0)
                shape[at : at + 1] = [p, d // p]
                break
        self.op("reshape", (k,), shape=tuple(map(int, shape)))

    def slice(self) -> None:
        k = self.some(lambda e: e.ndim > 0)
        if k is None:
            return
        from lezero.ops.slicing import slice_bounds

        ends = [None, None, 1, -1, 2]
        keys = [slice(self.pick(ends), self.pick(ends), self.pick([1, 1, 2, -1])) for _ in self.exprs[k].shape]
        bounds = [slice_bounds(key, int(d)) for key, d in zip(keys, self.exprs[k].shape)]
        self.op("slice", (k,), **{n: tuple(b[j] for b in bounds) for j, n in enumerate(("starts", "stops", "steps"))})

    def pad(self) -> None:
        k = self.some(lambda e: e.ndim > 0 and prod(e.shape) < MAX_ELEMENTS // 4)
        if k is not None:
            n = self.exprs[k].ndim
            before, after = (tuple(map(int, self.rng.integers(0, 2, n))) for _ in range(2))
            self.op("pad", (k,), before=before, after=after, fill=self.pick([0, 1.5]))

    def expand(self) -> None:
        k = self.some(lambda e: prod(e.shape) < MAX_ELEMENTS // 8)
        if k is None:
            return
        shape = tuple(self.pick([2, 3, 5]) if d == 1 else int(d) for d in self.exprs[k].shape)
        if self.rng.random() < 0.4:
            shape = (self.pick([2, 3]), *shape)
        if prod(shape) <= MAX_ELEMENTS:
            self.op("expand", (k,), shape=shape)

    def join(self) -> None:
        a = self.some(lambda e: e.ndim > 0 and prod(e.shape) < MAX_ELEMENTS // 2)
        if a is None:
            return
        shape = tuple(self.exprs[a].shape)
        axis = int(self.rng.integers(len(shape)))
        fits = lambda e: (
            e.ndim == len(shape) and all(p == q or i == axis for i, (p, q) in enumerate(zip(e.shape, shape)))
        )
        self.op("concatenate", (a, self.some(lambda e: fits(e) and prod(e.shape) < MAX_ELEMENTS // 2)), axis=axis)

    def move(self) -> None:
        k = self.some(lambda e: e.ndim > 0)
        if k is not None:
            axis = int(self.rng.integers(self.exprs[k].ndim))
            if self.rng.random() < 0.5:
                self.op("flip", (k,), axes=(axis,))
            else:
                self.op("roll", (k,), shifts=(int(self.rng.integers(-3, 4)),), axes=(axis,))

    def scan(self) -> None:
        k = self.some(lambda e: e.ndim > 0 and 0 not in e.shape)
        if k is not None:
            k = self.bounded(k)
            self.op("cumsum", (k,), axis=int(self.rng.integers(self.exprs[k].ndim)), reverse=False)

    def dot(self) -> None:
        a = self.some(lambda e: e.ndim >= 2 and 0 not in e.shape)
        if a is None:
            return
        a = self.bounded(a)
        shape = tuple(self.exprs[a].shape)
        b = self.some(lambda e: tuple(e.shape) == shape)
        turn = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        matmul, permute = REGISTRY["matmul"], REGISTRY["permute"]
        if prod(shape[:-1]) * shape[-2] <= MAX_ELEMENTS:
            self.put(lambda x, y: matmul(x, permute(y, axes=turn)), (a, b), "matmul x,y^T ")

    def convolve(self) -> None:
        a = self.some(lambda e: e.ndim == 4 and 0 not in e.shape and e.shape[2] * e.shape[3] > 1)
        if a is None:
            return
        a = self.bounded(a)
        n, c, h, w = self.exprs[a].shape
        side = self.pick([1, 3])
        flat, reshape, slice_, conv = REGISTRY["reshape"], REGISTRY["reshape"], REGISTRY["slice"], REGISTRY["conv2d"]
        count = n * c * h * w
        filters = self.pick([1, 2, 5])
        need = filters * c * side * side
        if need > count:
            return

        def apply(x: Any) -> Any:
            weight = slice_(flat(x, shape=(count,)), starts=(0,), stops=(need,), steps=(1,))
            weight = reshape(weight, shape=(filters, c, side, side))
            pad = side // 2
            return conv(x, weight, stride=(1, 1), padding=((pad, pad), (pad, pad)), dilation=(1, 1), groups=1)

        self.put(apply, (a,), f"conv2d {side}x{side} {filters} ")


WEIGHTS = {
    "unary": 5, "exponential": 2, "binary": 6, "scaled": 2, "select": 2, "reduce": 7, "normalize": 2, "position": 1, "count": 1,
    "permute": 2, "reshape": 3, "slice": 2, "pad": 1, "expand": 2, "join": 1, "move": 1, "scan": 1,
}  # fmt: skip


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return prod(np.broadcast_shapes(a, b)) <= max(MAX_ELEMENTS, prod(a), prod(b))
    except ValueError:
        return False
