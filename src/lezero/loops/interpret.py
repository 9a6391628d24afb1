"""Run a kernel one element at a time in plain Python: what code generation is tested against.

Slow and literal on purpose; nothing here is shared with the code generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lezero.loops import ir

VECTOR_TASK_BLOCK = 64


def dtype(type: str) -> np.dtype:
    """The NumPy dtype of a loop IR type."""
    if type == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    names = {
        "f16": "float16",
        "f32": "float32",
        "f64": "float64",
        "c64": "complex64",
        "c128": "complex128",
        "bool": "bool",
    }
    return np.dtype(names.get(type, type.replace("i", "int").replace("u", "uint")))


def run(
    kernel: ir.Kernel, arrays: Sequence[np.ndarray], params: Sequence[int] = (), tasks: int = 1, combine_tasks: int = 1
) -> None:
    """Run every task of `kernel`, then of its combine body, on flat views of contiguous `arrays`, in place."""
    with np.errstate(all="ignore"):
        for body, count in ((kernel.body, tasks), (kernel.combine or [], combine_tasks)):
            for task in range(count):
                scratch = [np.zeros(ir.evaluate(s.length, params), dtype(s.type)) for s in kernel.scratch]
                flat = [a.reshape(-1) for a in arrays]
                _Task([*flat, *scratch], params, task, count).statements(body)


class _Task:
    def __init__(self, buffers: list[np.ndarray], params: Sequence[int], task: int, tasks: int) -> None:
        self.buffers, self.params, self.task, self.tasks = buffers, params, task, tasks
        self.vars: dict[str, int] = {}
        self.accs: dict[str, Any] = {}

    def statements(self, body: list[ir.Stmt]) -> None:
        for s in body:
            match s:
                case ir.Loop():
                    for i in self.range(s):
                        self.vars[s.var] = i
                        self.statements(s.body)
                case ir.Acc():
                    self.accs[s.name] = self.value(s.init)
                case ir.Assign():
                    self.accs[s.acc] = self.value(s.value)
                case ir.Reduce():
                    self.reduce(s)
                case ir.Store():
                    self.store(s)

    def range(self, loop: ir.Loop) -> range:
        extent = int(self.value(loop.extent))
        if not loop.task:
            return range(extent)
        if not loop.vector:
            return range(extent * self.task // self.tasks, extent * (self.task + 1) // self.tasks)
        blocks = -(-extent // VECTOR_TASK_BLOCK)
        first, last = (blocks * t // self.tasks * VECTOR_TASK_BLOCK for t in (self.task, self.task + 1))
        return range(first, min(last, extent))

    def reduce(self, s: ir.Reduce) -> None:
        old, new = self.accs[s.acc], self.value(s.value)
        if s.index_acc is not None and s.index is not None:
            wins = new > old if ir.POSITIONS[s.kind] == "max" else new < old
            if wins or (np.isnan(new) and (s.kind == "argmax_of_window" or not np.isnan(old))):
                self.accs[s.acc], self.accs[s.index_acc] = new, self.value(s.index)
            return
        operation = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(s.kind, s.kind)
        self.accs[s.acc] = _BINARY[operation](old, new)

    def store(self, s: ir.Store) -> None:
        if s.mask is not None and not self.value(s.mask):
            return
        index, value, buffer = int(self.value(s.index)), self.value(s.value), self.buffers[s.buffer]
        if index < 0 or index >= buffer.size:
            raise IndexError(f"store to element {index} of buffer {s.buffer}, which has {buffer.size}")
        if s.add:
            wide = buffer.dtype.itemsize == 2 and buffer.dtype.kind in "fV"
            value = np.float32(buffer[index]) + np.float32(value) if wide else _BINARY["add"](buffer[index], value)
        buffer[index] = value

    def value(self, root: ir.Value):
        known: dict[ir.Value, object] = {}
        stack = [root]
        while stack:
            v = stack[-1]
            if v in known:
                stack.pop()
                continue
            missing = [a for a in v.args if a not in known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            known[v] = self.compute(v, [known[a] for a in v.args])
        return known[root]

    def compute(self, v: ir.Value, args: list):
        match v.op:
            case "const":
                return dtype(v.type).type(ir.number(v))
            case "param":
                return np.int64(self.params[v.attr])
            case "var":
                return np.int64(self.vars[v.attr])
            case "task":
                return np.int64(self.task)
            case "tasks":
                return np.int64(self.tasks)
            case "acc":
                return self.accs[v.attr]
            case "load":
                return self.load(v, args)
            case "cast":
                return cast(args[0], v.type)
            case "bitcast":
                return np.array([args[0]]).view(dtype(v.type))[0]
            case "where":
                return args[1] if args[0] else args[2]
            case "fma":
                return args[0] * args[1] + args[2]
        kind = dtype(v.type).type
        if v.op in _BINARY:
            return kind(_BINARY[v.op](*args))
        return kind(_UNARY[v.op](args[0]))

    def load(self, v: ir.Value, args: list):
        buffer = self.buffers[v.attr]
        if len(args) > 1 and not args[1]:
            return buffer.dtype.type(0)
        index = int(args[0])
        if index < 0 or index >= buffer.size:
            raise IndexError(f"load of element {index} of buffer {v.attr}, which has {buffer.size}")
        return buffer[index]


def cast(x, type: str):
    """Floats truncate and saturate (NaN gives 0); 8 and 16 bits then wrap from 32, u32 from 64."""
    to = dtype(type)
    if type == "bool":
        return np.bool_(x != 0)
    if to.kind == "c":
        return to.type(x)
    if np.iscomplexobj(x):
        x = x.real
    if to.kind in "iu" and np.asarray(x).dtype.kind not in "iub":
        bits = {"u64": 64, "i64": 64, "u32": 64}.get(type, 32)
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if type == "u64" and x >= 0:
            low, high = 0, (1 << 64) - 1
        x = float(x)
        n = 0 if math.isnan(x) else low if x <= low else high if x >= high else int(x)
    elif to.kind in "iu":
        n = int(x)
    else:
        return to.type(x)
    return wrap(n, type)


def wrap(n: int, type: str):
    """The Python integer `n`, modulo the range of an integer type."""
    to = dtype(type)
    size = 8 * to.itemsize
    n &= (1 << size) - 1
    return to.type(n - (1 << size) if to.kind == "i" and n >> (size - 1) else n)


def _in_double(f: Callable) -> Callable:
    def g(x):
        try:
            return f(float(x))
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return g


def _lgamma(x: float) -> float:
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


def _digamma(x: float) -> float:
    if x == 0 or (x < 0 and x == math.floor(x)):
        return -math.inf if x == 0 else math.nan
    if x < 0.5:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    total = 0.0
    while x < 30:
        total, x = total - 1 / x, x + 1
    z = 1 / (x * x)
    return total + math.log(x) - 0.5 / x - z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z / 240)))


def _sign(x):
    return x if np.isnan(x) else np.sign(x)


def _divide(op: str) -> Callable:
    floating = {"floordiv": np.floor_divide, "mod": np.mod, "fmod": np.fmod, "div": np.divide}[op]

    def f(x, y):
        if np.asarray(x).dtype.kind not in "iu":
            return floating(x, y)
        if y == 0:
            return type(x)(0)
        a, c = int(x), int(y)
        quotient = a // c
        if op in ("div", "fmod") and quotient < 0 and quotient * c != a:
            quotient += 1
        return wrap(quotient if op in ("floordiv", "div") else a - quotient * c, _type_of(x))

    return f


def _type_of(x) -> str:
    return np.asarray(x).dtype.name.replace("uint", "u").replace("int", "i")


def _shift(x, y, left: bool):
    bits = 8 * np.asarray(x).dtype.itemsize
    a, n = int(x), int(y)
    if n < 0 or n >= bits:
        return type(x)(-1 if not left and a < 0 else 0)
    return wrap(a << n if left else a >> n, _type_of(x))


def _power(x, y):
    if np.asarray(x).dtype.kind not in "iu":
        return np.power(x, y)
    if y < 0:
        return type(x)(x if x in (1, -1) and int(y) % 2 else 1 if x in (1, -1) else 0)
    bits = 8 * np.asarray(x).dtype.itemsize
    return wrap(pow(int(x), int(y), 1 << bits), _type_of(x))


_UNARY: dict[str, Callable] = {
    "neg": lambda x: -x, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: type(x)(1) / x, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "erf": _in_double(math.erf), "erfc": _in_double(math.erfc),
    "sigmoid": lambda x: 1 / (1 + np.exp(-np.float64(x))), "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "sign": _sign, "not": lambda x: ~x if np.asarray(x).dtype.kind in "iub" else x == 0,
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "lgamma": _in_double(_lgamma),
    "digamma": _in_double(_digamma), "real": np.real, "imag": np.imag, "conj": np.conj,
}  # fmt: skip
_BINARY: dict[str, Callable] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x ^ y if isinstance(x, np.bool_) else x - y, "mul": lambda x, y: x * y,
    "div": _divide("div"), "floordiv": _divide("floordiv"), "mod": _divide("mod"), "fmod": _divide("fmod"),
    "pow": _power, "atan2": np.arctan2, "max": np.maximum, "min": np.minimum, "and": lambda x, y: x & y,
    "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y, "shl": lambda x, y: _shift(x, y, True),
    "shr": lambda x, y: _shift(x, y, False), "copysign": np.copysign, "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y, "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y, "complex": complex,
}  # fmt: skip
