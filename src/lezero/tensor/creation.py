"""Making tensors: of data, of one value, of random numbers, of other tensors."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Sequence
from math import isfinite, prod
from string import ascii_letters
from typing import TYPE_CHECKING, Any

import numpy as np

from lezero.arguments import need_number, need_real, whole
from lezero.graph import dtype as dt
from lezero.graph.dtype import as_dtype
from lezero.hal import registry
from lezero.hal.buffer import Buffer
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import normalize_axis
from lezero.runtime import recorder
from lezero.runtime.leaves import kind_of
from lezero.runtime.recorder import record
from lezero.tensor.core import Core, _sizes

if TYPE_CHECKING:
    from lezero.tensor import Tensor


def _new(cls: type[Core] | None = None) -> Any:
    made = cls or recorder.tensor_class
    return made.__new__(made)


def _from_array(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    t = _new()
    t._buffer = Buffer(array)
    t._dynamic = (0,) if array.dtype.kind == "f" or array.dtype.kind == "c" else tuple(range(array.ndim))
    if array.ndim == 0:
        t._dynamic = ()
    if requires_grad:
        t.requires_grad_()
    return t


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor holding a copy of `data`: a number, nested sequences, a NumPy array or anything with ``__array__`` or DLPack.

    Python floats become the default dtype, ints int64; arrays keep theirs.

    Raises
    ------
    OverflowError
        For a Python number that an integer `dtype` cannot hold; elements of arrays and tensors are converted, and wrap around.
    """
    if isinstance(data, Core):
        array = data._realized().array
    elif isinstance(data, np.ndarray):
        array = data
    elif isinstance(data, (list, tuple)) and any(isinstance(x, Core) for x in data):
        array = np.stack([np.asarray(x.numpy() if isinstance(x, Core) else x) for x in data])
    else:
        try:
            array = np.asarray(data)
        except ValueError as e:
            raise ValueError(f"tensor: the nested sequences are not of equal lengths ({e})") from None
        except TypeError:
            if not hasattr(data, "__dlpack__"):
                raise
            from lezero.tensor.exchange import array_of

            array = array_of(data)  # PyTorch's bfloat16, which it does not give to NumPy
        if dtype is None and not hasattr(data, "__array__"):
            if array.dtype == np.float64:
                array = array.astype(dt.default_dtype().numpy)
            elif array.dtype == np.complex128:
                array = array.astype(dt.default_dtype().to_complex().numpy)
            elif array.size == 0:
                array = array.astype(dt.default_dtype().numpy)
    if array.dtype == object:
        raise TypeError(
            "tensor: a number, nested sequences of numbers or an array is needed, and integers fit 64 bits; "
            f"got {reprlib.repr(data)} ({type(data).__name__})"
        )
    if not array.dtype.isnative:  # files in network order, as MNIST's
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is not None:
        dtype = as_dtype(dtype)
        if not isinstance(data, (Core, np.ndarray)):
            _need_fitting("tensor", array, dtype)
        array = array.astype(dtype.numpy)
    else:
        as_dtype(array.dtype)
    _check_device(device)
    return _from_array(_copied(array), requires_grad)


def need_fit(name: str, value: Any, dtype: dt.DType) -> None:
    """Refuse a number that is written to a tensor of integers and is none of those its dtype holds."""
    if dtype.kind in "iu" and not isinstance(value, Core):
        _need_fitting(name, np.asarray(value), dtype)


def _need_fitting(name: str, array: np.ndarray, dtype: dt.DType) -> None:
    """The same for numbers of Python as an array."""
    if array.dtype.kind == "c" and not dtype.is_complex and dtype.kind != "b":
        raise TypeError(f"{name}: complex numbers do not fit {dtype.name}; .real and .imag are real")
    if (
        dtype.kind not in "iu"
        or not array.size
        or array.dtype.kind not in "iufO"
        or np.can_cast(array.dtype, dtype.numpy)
    ):
        return
    info = dt.iinfo(dtype)
    low, high = array.min(), array.max()
    if not (info.min - 1 < low and high < info.max + 1):  # a NaN compares as neither
        wrong = high if low > info.min - 1 else low
        raise OverflowError(f"{name}: {wrong} does not fit {dtype.name}, which holds {info.min} to {info.max}")


SMALL = 4096
"""Bytes up to which values lie in NumPy's memory: there it is made sooner, and what it takes does not show."""


def _copied(array: np.ndarray) -> np.ndarray:
    """The same elements, row-major."""
    made = memory_for(array.shape, as_dtype(array.dtype))
    made[...] = array
    return made


def memory_for(shape: tuple[int, ...], dtype: dt.DType) -> np.ndarray:
    """An array, not filled in, in memory of the backend in use, which counts it."""
    if prod(shape) * dtype.itemsize <= SMALL:
        return np.empty(shape, dtype.numpy)
    return registry.current().empty(shape, dtype).array


def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a tensor: a tensor itself, or converted with its gradient; a copy of anything else, as :func:`tensor` makes."""
    if isinstance(data, Core):
        return data.to(dtype=dtype, device=device)
    return tensor(data, dtype=dtype, device=device)


def _check_device(device: Any) -> None:
    if device is not None and str(device).split(":")[0] != "cpu":
        raise ValueError(f"there is no device {device!r} here; this machine has 'cpu'")


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor with a copy of the array's values and its dtype."""
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"from_numpy: a NumPy array is needed, got {type(array).__name__}; lz.tensor takes numbers, lists and arrays"
        )
    return tensor(array)


def make_parameter(cls: type, data: Tensor, requires_grad: bool = True) -> Any:
    """An instance of `cls`, a subclass of Tensor, with the value of `data`; extents are never symbols."""
    t = _new(cls)
    t._buffer = data._realized()
    t._requires_grad = requires_grad
    return t


def _source(name: str, dtype: Any, requires_grad: bool, device: Any = None, **attrs: Any) -> Tensor:
    _check_device(device)
    op = OPS[name]
    t = record(op, (), op.bind({**attrs, "dtype": as_dtype(dtype)}))
    return t.requires_grad_() if requires_grad else t


def _extents(name: str, size: tuple) -> tuple[int, ...]:
    """Sizes given one by one or together, none of which is negative."""
    shape = _sizes(size)
    if any(type(n) is int and n < 0 for n in shape):
        raise ValueError(f"{name}: sizes must not be negative, got {shape}")
    return shape


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`fill_value` everywhere."""
    size = _extents("full", (size,))
    if not isinstance(fill_value, Core):
        need_number("full: fill_value", fill_value)
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, Core) else as_dtype(type(fill_value))
    need_fit("full", fill_value, as_dtype(dtype))
    if isinstance(fill_value, (bool, int)) or (isinstance(fill_value, float) and repr(fill_value) in ("0.0", "1.0")):
        return _source("full", dtype, requires_grad, device, shape=size, value=fill_value)
    _check_device(device)
    value = fill_value if isinstance(fill_value, Core) else _number(fill_value)
    t = record(OPS["expand"], (value._cast(as_dtype(dtype)),), (size,))
    return t.requires_grad_() if requires_grad else t


def _number(value: Any) -> Tensor:
    """A Python number as a 0-d tensor whose value is a run-time input."""
    dtype = {float: dt.float64, complex: dt.complex128}.get(type(value))
    from lezero.runtime.inputs import scalar_input

    return scalar_input(lambda: value, dtype or as_dtype(type(value)))


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape, given as ints or as one sequence; of the default dtype unless given."""
    return _source("full", dtype or dt.default_dtype(), requires_grad, device, shape=_extents("zeros", size), value=0)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of a shape, given as ints or as one sequence; of the default dtype unless given."""
    return _source("full", dtype or dt.default_dtype(), requires_grad, device, shape=_extents("ones", size), value=1)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """As ``zeros``: there is no uninitialised memory to be seen here."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def zeros_like(t: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of the shape of `t`, and of its dtype unless given."""
    return zeros(t.shape, dtype=dtype or t.dtype, device=device, requires_grad=requires_grad)


def ones_like(t: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of the shape of `t`, and of its dtype unless given."""
    return ones(t.shape, dtype=dtype or t.dtype, device=device, requires_grad=requires_grad)


def full_like(
    t: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`fill_value` everywhere, in the shape of `t`, and of its dtype unless given."""
    return full(t.shape, fill_value, dtype=dtype or t.dtype, device=device, requires_grad=requires_grad)


empty_like = zeros_like


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, … before `end`; for an integer `dtype`, floats are cut off first.

    Raises
    ------
    ValueError
        For a step of 0 or away from the end, and for ends that are infinite or NaN.
    """
    if end is None:
        start, end = 0, start
    start, end, step = (
        _one_number(f"arange: {name}", value) for name, value in zip(("start", "end", "step"), (start, end, step))
    )
    if any(isinstance(v, float) and not isfinite(v) for v in (start, end, step)):
        raise ValueError(f"arange: start, end and step are finite, got {start}, {end} and {step}")
    if (end - start) * step < 0:
        raise ValueError(f"arange: a step of {step} does not lead from {start} to {end}")
    if dtype is None:
        dtype = dt.default_dtype() if any(isinstance(v, float) for v in (start, end, step)) else dt.int64
    elif as_dtype(dtype).kind in "iu":
        start, end, step = (int(v) if isinstance(v, float) else v for v in (start, end, step))
    return _source("arange", dtype, requires_grad, device, start=start, stop=end, step=step)


def _one_number(name: str, value: Any) -> Any:
    """A real number, of Python or as a tensor of one element."""
    if isinstance(value, Core):
        return value.item()  # type: ignore[attr-defined]
    if not isinstance(value, (int, float)):
        need_real(name, value)
    return value


def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` numbers evenly spaced from `start` to `end`, both included (numbers, or tensors of one element)."""
    steps = whole("linspace: steps", steps, 0)
    start, end = _one_number("linspace: start", start), _one_number("linspace: end", end)
    if as_dtype(dtype or dt.default_dtype()).kind in "iu":  # the ends are cut off before, and what is between after
        start, end = int(start), int(end)
    return _source(
        "linspace", dtype or dt.default_dtype(), requires_grad, device, start=float(start), stop=float(end), steps=steps
    )


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the main diagonal, zeros elsewhere: (n, m), or (n, n)."""
    n = whole("eye: n", n, 0)
    m = m if m is None else whole("eye: m", m, 0)
    rows, columns = arange(n).reshape(n, 1), arange(n if m is None else m)
    t = (rows == columns)._cast(as_dtype(dtype or dt.default_dtype()))
    return t.requires_grad_() if requires_grad else t


def _random(name: str, shape: tuple, dtype: Any, generator: Any, requires_grad: bool, **attrs: Any) -> Tensor:
    from lezero.runtime.inputs import random_key

    dtype = as_dtype(dtype)
    if dtype.is_complex:
        scale = 0.5**0.5 if name == "normal" else 1  # each part has half the variance
        parts = [_random(name, shape, dtype.to_real(), generator, False, **attrs) * scale for _ in range(2)]
        t = record(OPS["complex"], tuple(parts), ())
        return t.requires_grad_() if requires_grad else t
    op = OPS[name]
    t = record(op, random_key(generator), op.bind({"shape": shape, "dtype": dtype, **attrs}))
    return t.requires_grad_() if requires_grad else t


def rand(
    *size: Any, dtype: Any = None, device: Any = None, generator: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform in [0, 1), of a shape given as ints or as one sequence; of the default dtype unless given."""
    _check_device(device)
    return _random("uniform", _extents("rand", size), dtype or dt.default_dtype(), generator, requires_grad)


def randn(
    *size: Any, dtype: Any = None, device: Any = None, generator: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normally distributed, mean 0 and variance 1, of a shape given as ints or as one sequence; of the default dtype unless given."""
    _check_device(device)
    return _random("normal", _extents("randn", size), dtype or dt.default_dtype(), generator, requires_grad)


def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None, generator: Any = None
) -> Tensor:
    """Integers from `low` (0 if left out) to `high` - 1, of the shape `size`; int64 unless given."""
    if size is None:
        low, high, size = 0, low, high
    if size is None:
        raise TypeError("randint: a size is needed, as in randint(low, high, (rows, columns))")
    low, high = whole("randint: low", low), whole("randint: high", high)
    if high <= low:
        raise ValueError(f"randint: high={high} must be greater than low={low}")
    _check_device(device)
    dtype = as_dtype(dtype or dt.int64)
    need_fit("randint: low", low, dtype)
    need_fit("randint: high - 1", high - 1, dtype)
    return _random("randint", _extents("randint", (size,)), dtype, generator, False, low=low, high=high)


def randperm(n: int, *, dtype: Any = None, device: Any = None, generator: Any = None) -> Tensor:
    """The numbers from 0 to n - 1 in random order."""
    return (
        rand(whole("randperm: n", n, 0), dtype=dt.float64, device=device, generator=generator)
        .argsort()
        ._cast(as_dtype(dtype or dt.int64))
    )


def rand_like(t: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1), of the shape of `t`, and of its dtype unless given."""
    return rand(t.shape, dtype=dtype or t.dtype, device=device, requires_grad=requires_grad)


def randn_like(t: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Normally distributed, mean 0 and variance 1, of the shape of `t`, and of its dtype unless given."""
    return randn(t.shape, dtype=dtype or t.dtype, device=device, requires_grad=requires_grad)


def randint_like(t: Tensor, low: int, high: Any = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Random integers from `low` (0 if left out) to `high` - 1, of the shape and dtype of `t`."""
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, t.shape, device=device)._cast(as_dtype(dtype or t.dtype))


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join along an existing dimension (`axis` is another name for it); dtypes that differ are promoted.

    Vectors of no elements are left out beside tensors of more dimensions, as in PyTorch.
    """
    tensors = tuple(tensors)
    if not tensors:
        raise ValueError("cat: at least one tensor is needed")
    dim = dim if axis is None else axis
    _need_tensors("cat", tensors)
    if len(dtypes := dict.fromkeys(t.dtype for t in tensors)) > 1:
        wide = functools.reduce(dt.promote, dtypes)
        tensors = tuple(t._cast(wide) for t in tensors)
    if len({t.ndim for t in tensors}) > 1:
        tensors = tuple(t for t in tensors if t.ndim != 1 or t.shape[0])
    return record(OPS["concatenate"], tensors, (normalize_axis("cat", dim, tensors[0].ndim),))


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join along a new dimension (`axis` is another name for it)."""
    tensors = tuple(tensors)
    dim = dim if axis is None else axis
    if not tensors:
        raise ValueError("stack: at least one tensor is needed")
    _need_tensors("stack", tensors)
    return cat([t.unsqueeze(normalize_axis("stack", dim, t.ndim + 1)) for t in tensors], dim)


def _need_tensors(name: str, tensors: tuple) -> None:
    for i, t in enumerate(tensors):
        if not isinstance(t, Core):
            raise TypeError(f"{name}: tensors are joined, number {i} is a {kind_of(t)}")


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition` holds, `other` elsewhere; without both, where it holds, as ``nonzero(as_tuple=True)``."""
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    x, y = input, other
    if isinstance(x, Core) is not isinstance(y, Core):
        number, t = (y, x) if isinstance(x, Core) else (x, y)
        if type(number) is int:
            need_fit("where", number, t.dtype)
    return record(OPS["where"], (condition, x, y), ())


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Sums of products over named dimensions, as in NumPy: ``einsum('ij,jk->ik', a, b)``, or
    ``einsum(a, [0, 1], b, [1, 2], [0, 2])`` with numbers for the letters."""
    if isinstance(equation, Core) and operands and isinstance(operands[0], (list, tuple)):
        equation, operands = _with_letters((equation, *operands))
    elif len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str):
        raise TypeError(
            f"einsum: the equation comes first, as in einsum('ij,jk->ik', a, b); got a {type(equation).__name__}"
        )
    return record(OPS["einsum"], operands, OPS["einsum"].bind({"equation": equation}))


def _with_letters(given: tuple) -> tuple[str, tuple]:
    """Equation and operands of einsum's other form."""
    written = ",".join(map(_letters, given[1 : len(given) // 2 * 2 : 2]))
    if len(given) % 2:
        written += "->" + _letters(given[-1])
    return written, given[: len(given) // 2 * 2 : 2]


def _letters(places: Any) -> str:
    if not isinstance(places, (list, tuple)) or not all(p is Ellipsis or 0 <= p < 52 for p in places):
        raise TypeError(f"einsum: a list of numbers from 0 to 51 (or ...) follows each tensor, got {places!r}")
    return "".join("..." if p is Ellipsis else ascii_letters[p] for p in places)


class New(Core):
    """What makes tensors of this one's dtype."""

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """``zeros``, of this dtype unless given."""
        return zeros(*size, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """``ones``, of this dtype unless given."""
        return ones(*size, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad)

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """``empty``, of this dtype unless given."""
        return empty(*size, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """``full``, of this dtype unless given."""
        return full(size, fill_value, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad)

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """``tensor``, of this dtype unless given: a copy of `data`."""
        return tensor(data, dtype=dtype or self.dtype, device=device, requires_grad=requires_grad)
