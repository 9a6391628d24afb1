"""``Tensor``: what users hold.

Methods follow PyTorch's names and behaviour.  None of them computes: they record, and reading a value (``item``, ``numpy``,
``tolist``, printing, ``bool``, ``float``, ``int``) runs what has been recorded.
"""

from __future__ import annotations

import contextlib
import functools
import reprlib
from collections.abc import Callable, Sequence
from math import prod
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np

import lezero.ops  # noqa: F401  (fills the registry)
from lezero.graph import dtype as dt
from lezero.graph.dtype import DType, as_dtype
from lezero.hal.buffer import Borrowed, Buffer, export
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import Op, broadcast_shapes, normalize_axes, normalize_axis
from lezero.ops.operand import Operand
from lezero.runtime import recorder
from lezero.runtime.gradient import backward as _backward
from lezero.runtime.recorder import STATE, WRITE_BACK, Handle, assign, import_handle, note_view, record
from lezero.runtime.run import run_now, run_recording

Axes = int | Sequence[int] | None


class Tensor(Operand, Handle):
    """An n-dimensional array that remembers how it was computed.

    Make one with :func:`lezero.tensor`, :func:`lezero.zeros` and friends; the class itself is not called.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        raise TypeError("make tensors with lz.tensor(data), lz.zeros(...), lz.from_numpy(array) and the like")

    if TYPE_CHECKING:  # one method for each operation is installed below and in functions.py

        def __getattr__(self, name: str) -> Any: ...

    # -- what it is --------------------------------------------------------------------------------------------

    def _apply(self, op: Op, operands: tuple, attrs: tuple) -> Tensor:
        return record(op, operands, attrs)

    def _accepts(self, other: Any) -> bool:
        # Arrays are taken so that they are refused with advice: NumPy would answer with an array, without a gradient.
        return isinstance(other, (bool, int, float, complex, Handle, np.generic, np.ndarray))

    __array_priority__ = 1000  # NumPy's operators leave `array + tensor` and `number * tensor` to us

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents.  Those that are symbols to the recording in progress compare and compute like ints (they are ints)."""
        rec = self._rec
        if rec is not None:
            shape = self._shape
            if shape is None:
                shape = self._shape = rec.shape_of(self._node)
            return shape
        if self._buffer is None:
            import_handle(STATE.recording, self)
            return self.shape
        shape = self._buffer.array.shape
        if self._dynamic:
            symbol = STATE.recording.symbol
            return tuple(symbol(n) if i in self._dynamic else n for i, n in enumerate(shape))
        return shape

    @property
    def dtype(self) -> DType:
        if self._rec is not None:
            return self._node.dtype
        if self._buffer is None:
            import_handle(STATE.recording, self)
            return self._node.dtype
        return as_dtype(self._buffer.array.dtype)

    @property
    def device(self) -> str:
        return (
            self._node.device if self._rec is not None else self._buffer.device if self._buffer is not None else "cpu"
        )

    @property
    def ndim(self) -> int:
        if self._rec is not None:
            return len(self._node.shape)
        return len(self.shape)

    @property
    def weak(self) -> bool:
        return self._weak

    def dim(self) -> int:
        return self.ndim

    ndimension = dim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return prod(self.shape)

    nelement = numel

    @property
    def nbytes(self) -> int:
        return int(prod(self.shape)) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_signed(self) -> bool:
        return self.dtype.kind not in "bu"

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    # -- gradients ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        if self._requires_grad:
            return True
        if self._rec is not None:
            return self._node.tracks
        if self._buffer is None:
            import_handle(STATE.recording, self)
            return self._node.tracks
        return self._history is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Say whether gradients of this leaf are wanted."""
        if requires_grad and not self.dtype.differentiable:
            raise RuntimeError(
                f"only floating and complex tensors can require gradients, this one is {self.dtype.name}"
            )
        if not requires_grad and not self.is_leaf:
            raise RuntimeError("requires_grad can only be switched off for leaves; use .detach() for a computed tensor")
        if requires_grad == self._requires_grad or (requires_grad and not self.is_leaf):
            return self
        rec = STATE.recording
        self._requires_grad = bool(requires_grad)
        rec.imported.pop(id(self), None)
        if self._rec is not None:
            if requires_grad:
                fresh = recorder._as_variable(self)
            else:
                fresh = record(OPS["detach"], (self,), ())
            recorder.adopt(self, fresh)
            if requires_grad:
                rec.variables[self._node] = self
        return self

    @property
    def is_leaf(self) -> bool:
        return self._requires_grad or not self.requires_grad

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by ``backward()``, or None."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and tuple(value.shape) != tuple(self.shape):
            raise ValueError(f"grad: shape {tuple(value.shape)} does not fit the tensor's {tuple(self.shape)}")
        self._grad = value

    def backward(
        self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add this tensor's gradient to ``grad`` of every leaf it depends on that requires one.

        Parameters
        ----------
        gradient : Tensor of this shape
            What this tensor's own gradient is; for a single element it is 1.
        retain_graph : bool
            Keep what is needed to call backward again.
        create_graph : bool
            Record the gradients so that they can be differentiated.
        """
        _backward(self, gradient, retain_graph, create_graph)

    def detach(self) -> Tensor:
        """The same value, cut off from how it was computed; writing to it writes to this tensor."""
        return self._as_view(OPS["detach"], ())

    def detach_(self) -> Tensor:
        recorder.adopt(self, record(OPS["detach"], (self,), ()))
        return self

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        with no_grad():
            self._set(value)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> _HookHandle:
        """Call `hook` with the gradient of this tensor; what it returns (if anything) replaces the gradient."""
        if not self.requires_grad:
            raise RuntimeError("register_hook: this tensor does not require a gradient")
        if self._requires_grad:
            if self._hooks is None:
                self._hooks = {}
            table = self._hooks
        elif self._rec is not None:
            table = self._rec.hooks.setdefault(self._node, {})
        elif isinstance(self._history, tuple):
            table = self._history[0].hooks.setdefault(self._history[1], {})
        else:
            raise RuntimeError("register_hook: the gradient of this tensor has been taken already")
        return _HookHandle(table, hook)

    def retain_grad(self) -> None:
        """Also store the gradient that passes through this computed tensor in its ``grad``."""
        if not self._requires_grad:

            def store(g: Tensor) -> None:
                self._grad = g if self._grad is None else self._grad + g

            self.register_hook(store)

    # -- reading values ----------------------------------------------------------------------------------------

    def _realized(self) -> Buffer:
        if self._buffer is None:
            if self._rec is None:
                import_handle(STATE.recording, self)
            if self._rec is STATE.recording:
                run_now()
            else:
                run_recording(self._rec)  # type: ignore[arg-type]
        assert self._buffer is not None
        return self._buffer

    def realize(self) -> Tensor:
        """Run what has been recorded, so that this tensor holds its value."""
        self._realized()
        return self

    def numpy(self) -> np.ndarray:
        """The values as a read-only array, without a copy."""
        if self._requires_grad or (
            self.requires_grad and STATE.grad_mode and self._rec is not None and self._node.tracks
        ):
            pass  # reading is harmless here: values are immutable, so no gradient can be missed
        return export(self._realized())

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number."""
        array = self._realized().array
        if array.size != 1:
            raise ValueError(f"item(): only for a tensor of one element, this one has shape {array.shape}")
        value = array.reshape(())[()]
        return float(value) if self.dtype in dt.FLOATING else value.item()

    def tolist(self) -> Any:
        array = self._realized().array
        return array.astype(np.float32).tolist() if self.dtype in (dt.bfloat16, dt.float16) else array.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module with the functions of the array API standard (those it has; names and behaviour are PyTorch's)."""
        import lezero

        return lezero

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Hand the values to another library, without a copy where it can promise not to write into them."""
        if self.dtype is dt.bfloat16:
            raise BufferError("DLPack through NumPy has no bfloat16; use .float() first")
        array = self.numpy()
        if copy or max_version is None or max_version < (1, 0):  # an older consumer cannot be told that it is read-only
            return array.copy().__dlpack__()
        return array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"only integer tensors of one element can be an index, this one is {self.dtype.name}")
        return int(self.item())

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(int(self.shape[0])))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __repr__(self) -> str:
        array = self._realized().array
        if self.dtype in (dt.bfloat16, dt.float16):
            array = array.astype(np.float32)
        prefix = "tensor("
        text = np.array2string(array, separator=", ", prefix=prefix, precision=4, threshold=1000)
        words = []
        if self.dtype not in (dt.default_dtype(), dt.int64, dt.bool_):
            words.append(f"dtype={self.dtype!r}")
        if array.size == 0:
            words.append(f"shape={array.shape}")
        if self.requires_grad:
            words.append("requires_grad=True")
        return prefix + ", ".join([text, *words]) + ")"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else repr(self)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError("deepcopy: only leaves can be copied; use .detach().clone()")
        with no_grad():
            made = _new(type(self))
            made.__dict__.update({k: v for k, v in self.__dict__.items() if not k.startswith("_")})
            made._buffer = Buffer(np.array(self._realized().array, copy=True, order="C"))
            made._dynamic = self._dynamic
            made._requires_grad = self._requires_grad
            if self._grad is not None:
                import copy

                made._grad = copy.deepcopy(self._grad, memo)
        memo[id(self)] = made
        return made

    def __copy__(self) -> Tensor:
        return self.detach().requires_grad_(self._requires_grad)

    def __reduce__(self):
        array = np.ascontiguousarray(self._realized().array)
        return _unpickle, (
            type(self),
            array.tobytes(),
            self.dtype.name,
            array.shape,
            self._requires_grad,
            self._dynamic,
        )

    # -- dtype and place ---------------------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """With another dtype or on another device: ``t.to(lz.float16)``, ``t.to("cpu")``, ``t.to(other)``."""
        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        kwargs.pop("non_blocking", None), kwargs.pop("copy", None), kwargs.pop("memory_format", None)
        if kwargs:
            raise TypeError(f"to: unknown argument {', '.join(kwargs)}")
        for a in args:
            if isinstance(a, Tensor):
                dtype, device = a.dtype, a.device
            elif isinstance(a, str) and a not in dt._BY_NAME:
                device = a
            elif isinstance(a, bool):
                continue
            else:
                dtype = a
        if device is not None and str(device).split(":")[0] != "cpu":
            raise ValueError(
                f"to: there is no device {device!r} here; backends installed bring theirs, this one has 'cpu'"
            )
        return self if dtype is None else self._cast(as_dtype(dtype))

    def _cast(self, dtype: DType) -> Tensor:
        return self if self.dtype is dtype else record(OPS["cast"], (self,), (dtype,))

    def type(self, dtype: Any = None) -> Any:
        return repr(self.dtype) if dtype is None else self._cast(as_dtype(dtype))

    def double(self) -> Tensor:
        return self._cast(dt.float64)

    def half(self) -> Tensor:
        return self._cast(dt.float16)

    def bfloat16(self) -> Tensor:
        return self._cast(dt.bfloat16)

    def long(self) -> Tensor:
        return self._cast(dt.int64)

    def short(self) -> Tensor:
        return self._cast(dt.int16)

    def char(self) -> Tensor:
        return self._cast(dt.int8)

    def byte(self) -> Tensor:
        return self._cast(dt.uint8)

    def type_as(self, other: Tensor) -> Tensor:
        return self._cast(other.dtype)

    def cpu(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return record(OPS["identity"], (self,), ())

    def contiguous(self, memory_format: Any = None) -> Tensor:
        return self

    def is_contiguous(self) -> bool:
        return True

    # -- views -------------------------------------------------------------------------------------------------

    def _as_view(self, op: Op, attrs: tuple) -> Tensor:
        view = record(op, (self,), attrs)
        note_view(view, self, op, attrs)
        return view

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one extent may be -1."""
        wanted = _sizes(shape)
        have = self.shape
        if -1 in wanted:
            known = prod(d for d in wanted if d != -1)
            total = prod(have)
            if wanted.count(-1) > 1:
                raise ValueError(f"reshape: only one extent may be -1, got {wanted}")
            if known == 0 or total % known != 0:
                raise ValueError(
                    f"reshape: {tuple(map(int, have))} has {int(total)} elements, which {wanted} cannot hold"
                )
            wanted = tuple(total // known if d == -1 else d for d in wanted)
        return self._as_view(OPS["reshape"], (wanted,))

    view = reshape

    def view_as(self, other: Tensor) -> Tensor:
        return self.reshape(other.shape)

    reshape_as = view_as

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        n = self.ndim
        if not n:
            return self.reshape(1)
        a, b = normalize_axis("flatten", start_dim, n), normalize_axis("flatten", end_dim, n)
        if a > b:
            raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
        s = self.shape
        return self._as_view(OPS["reshape"], ((*s[:a], prod(s[a : b + 1]), *s[b + 1 :]),))

    def ravel(self) -> Tensor:
        return self.reshape(-1)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        d, s = normalize_axis("unflatten", dim, self.ndim), self.shape
        sizes = tuple(sizes)
        if -1 in sizes:
            known = prod(x for x in sizes if x != -1)
            sizes = tuple(s[d] // known if x == -1 else x for x in sizes)
        return self.reshape((*s[:d], *sizes, *s[d + 1 :]))

    def permute(self, *dims: Any) -> Tensor:
        order = _sizes(dims)
        n = self.ndim
        axes = tuple(normalize_axis("permute", a, n) for a in order)
        if sorted(axes) != list(range(n)):
            raise ValueError(f"permute: {order} does not name each of the {n} dimensions once")
        return self._as_view(OPS["permute"], (axes,))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        n = self.ndim
        a, b = normalize_axis("transpose", dim0, n), normalize_axis("transpose", dim1, n)
        axes = list(range(n))
        if n:
            axes[a], axes[b] = axes[b], axes[a]
        return self._as_view(OPS["permute"], (tuple(axes),))

    swapaxes = swapdims = transpose

    def t(self) -> Tensor:
        if self.ndim > 2:
            raise ValueError(f"t(): for at most 2 dimensions, this tensor has {self.ndim}; use .mT or transpose(a, b)")
        return self if self.ndim < 2 else self.transpose(0, 1)

    @property
    def T(self) -> Tensor:
        return self.permute(tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Tensor:
        return self.transpose(-2, -1)

    @property
    def mH(self) -> Tensor:
        """Matrices transposed and conjugated."""
        return self.mT.conj() if self.is_complex() else self.mT

    adjoint = lambda self: self.mH

    def movedim(self, source: Any, destination: Any) -> Tensor:
        n = self.ndim
        src = [normalize_axis("movedim", a, n) for a in ([source] if isinstance(source, int) else source)]
        dst = [
            normalize_axis("movedim", a, n) for a in ([destination] if isinstance(destination, int) else destination)
        ]
        order: list = [None] * n
        for s, d in zip(src, dst):
            order[d] = s
        rest = iter(i for i in range(n) if i not in src)
        return self.permute(tuple(next(rest) if o is None else o for o in order))

    def expand(self, *sizes: Any) -> Tensor:
        """Repeat extents of 1 without copying; -1 leaves an extent as it is."""
        wanted, have = _sizes(sizes), self.shape
        extra = len(wanted) - len(have)
        if extra < 0:
            raise ValueError(f"expand: {wanted} has fewer dimensions than {tuple(map(int, have))}")
        shape = tuple((have[i - extra] if i >= extra else -1) if d == -1 else d for i, d in enumerate(wanted))
        return self._as_view(OPS["expand"], (shape,))

    def expand_as(self, other: Tensor) -> Tensor:
        return self.expand(other.shape)

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        return self.expand(*shape)

    def squeeze(self, dim: Any = None) -> Tensor:
        s = self.shape
        axes = normalize_axes("squeeze", dim if dim is None or isinstance(dim, int) else tuple(dim), len(s))
        return self._as_view(OPS["reshape"], (tuple(d for i, d in enumerate(s) if not (i in axes and d == 1)),))

    def unsqueeze(self, dim: int) -> Tensor:
        s = self.shape
        d = normalize_axis("unsqueeze", dim, len(s) + 1)
        return self._as_view(OPS["reshape"], ((*s[:d], 1, *s[d:]),))

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        index: list[Any] = [slice(None)] * self.ndim
        index[dim] = slice(start, start + length)
        return self[tuple(index)]

    def select(self, dim: int, index: int) -> Tensor:
        at: list[Any] = [slice(None)] * self.ndim
        at[normalize_axis("select", dim, self.ndim)] = index
        return self[tuple(at)]

    def flip(self, *dims: Any) -> Tensor:
        return record(OPS["flip"], (self,), (normalize_axes("flip", _sizes(dims), self.ndim),))

    def split(self, size: Any, dim: int = 0) -> tuple[Tensor, ...]:
        d = normalize_axis("split", dim, self.ndim)
        total = int(self.shape[d])
        if isinstance(size, int) and size < 1:
            raise ValueError(f"split: a size of 1 or more is needed, got {size}")
        sizes = (
            list(size) if not isinstance(size, int) else [min(size, total - i) for i in range(0, total, size)] or [0]
        )
        if sum(sizes) != total:
            raise ValueError(f"split: sizes {sizes} do not add up to the extent {total} of dimension {dim}")
        out, at = [], 0
        for n in sizes:
            out.append(self.narrow(d, at, n))
            at += n
        return tuple(out)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        total = int(self.shape[normalize_axis("chunk", dim, self.ndim)])
        return self.split(max(1, -(-total // chunks)), dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        return tuple(self.select(dim, i) for i in range(int(self.shape[normalize_axis("unbind", dim, self.ndim)])))

    def repeat(self, *sizes: Any) -> Tensor:
        reps = _sizes(sizes)
        s = (1,) * (len(reps) - self.ndim) + tuple(self.shape)
        split = self.reshape(tuple(x for d in s for x in (1, d))).expand(
            tuple(x for r, d in zip(reps, s) for x in (r, d))
        )
        return split.reshape(tuple(r * d for r, d in zip(reps, s)))

    def __getitem__(self, index: Any) -> Tensor:
        from lezero.indexing import get

        return get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from lezero.indexing import put

        put(self, index, value)

    # -- writing -----------------------------------------------------------------------------------------------

    def _set(self, value: Any) -> Tensor:
        """Point this handle at `value`, broadcast and cast to what it is now."""
        if not isinstance(value, Tensor):
            value = record(OPS["full"], (), ((), value, self.dtype))
        if value.dtype is not self.dtype:
            order = "biufc".replace("u", "").index
            kind = lambda d: order("i" if d.kind == "u" else d.kind)
            if kind(value.dtype) > kind(self.dtype):
                raise RuntimeError(
                    f"an in-place result of dtype {value.dtype.name} cannot be stored in {self.dtype.name}"
                )
            value = value._cast(self.dtype)
        if tuple(value.shape) != tuple(self.shape):
            if broadcast_shapes("in-place write", value.shape, self.shape) != tuple(self.shape):
                raise RuntimeError(f"in-place: shape {tuple(value.shape)} does not fit into {tuple(self.shape)}")
            value = record(OPS["expand"], (value,), (tuple(self.shape),))
        assign(self, value)
        return self

    def copy_(self, source: Any) -> Tensor:
        """Overwrite with `source`, broadcast and cast."""
        source = source if isinstance(source, Tensor) else tensor(source)
        return self._set(source._cast(self.dtype))

    def fill_(self, value: Any) -> Tensor:
        value = (
            value
            if isinstance(value, Tensor)
            else value * record(OPS["full"], (), ((), 1, self.dtype))
            if self.dtype.kind in "fc"
            else value
        )
        return self._set(
            value._cast(self.dtype) if isinstance(value, Tensor) else record(OPS["full"], (), ((), value, self.dtype))
        )

    def zero_(self) -> Tensor:
        return self._set(record(OPS["full"], (), ((), 0, self.dtype)))

    def normal_(self, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
        return self._set(randn(*self.shape, dtype=self.dtype, generator=generator) * std + mean)

    def uniform_(self, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
        return self._set(rand(*self.shape, dtype=self.dtype, generator=generator) * (b - a) + a)

    def bernoulli_(self, p: float = 0.5, generator: Any = None) -> Tensor:
        return self._set((rand(*self.shape, generator=generator) < p)._cast(self.dtype))

    def exponential_(self, lambd: float = 1.0, generator: Any = None) -> Tensor:
        return self._set((-rand(*self.shape, dtype=self.dtype, generator=generator)).log1p() / -lambd)

    def masked_fill_(self, mask: Tensor, value: Any) -> Tensor:
        return self._set(self.masked_fill(mask, value))

    def clamp_(self, min: Any = None, max: Any = None) -> Tensor:
        return self._set(self.clamp(min, max))

    # -- functions with arguments of their own --------------------------------------------------------------------

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        out = self
        if min is None and max is None:
            raise ValueError("clamp: give min, max or both")
        if min is not None:
            out = record(OPS["maximum"], (out, min), ())
        if max is not None:
            out = record(OPS["minimum"], (out, max), ())
        return out

    clip = clamp

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """`value` where `mask` (bool, broadcast) is True."""
        return record(OPS["where"], (mask, value, self), ())._cast(self.dtype)

    def where(self, condition: Tensor, other: Any) -> Tensor:
        return record(OPS["where"], (condition, self, other), ())

    def pow(self, exponent: Any) -> Tensor:
        return self**exponent

    def _reduce(self, name: str, dim: Axes, keepdim: bool, **attrs: Any) -> Tensor:
        axes = normalize_axes(name, dim if dim is None or isinstance(dim, int) else tuple(dim) or None, self.ndim)
        op = OPS[name]
        return record(op, (self,), op.bind({"axes": axes, "keepdim": keepdim, **attrs}))

    def sum(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        return (self if dtype is None else self._cast(as_dtype(dtype)))._reduce("sum", dim, keepdim)

    def mean(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        return (self if dtype is None else self._cast(as_dtype(dtype)))._reduce("mean", dim, keepdim)

    def prod(self, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        return (self if dtype is None else self._cast(as_dtype(dtype)))._reduce("prod", dim, keepdim)

    def amax(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("max", dim, keepdim)

    def amin(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("min", dim, keepdim)

    def var(self, dim: Axes = None, correction: int = 1, keepdim: bool = False, unbiased: bool | None = None) -> Tensor:
        return self._reduce(
            "var", dim, keepdim, correction=correction if unbiased is None else __builtins_int(unbiased)
        )

    def std(self, dim: Axes = None, correction: int = 1, keepdim: bool = False, unbiased: bool | None = None) -> Tensor:
        return self._reduce(
            "std", dim, keepdim, correction=correction if unbiased is None else __builtins_int(unbiased)
        )

    def any(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("any", dim, keepdim)

    def all(self, dim: Axes = None, keepdim: bool = False) -> Tensor:
        return self._reduce("all", dim, keepdim)

    def logsumexp(self, dim: Axes, keepdim: bool = False) -> Tensor:
        return self._reduce("logsumexp", dim, keepdim)

    def norm(self, p: Any = 2, dim: Axes = None, keepdim: bool = False) -> Tensor:
        if p == "fro":
            p = 2
        return self._reduce("norm", dim, keepdim, p=p)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return self._reduce("argmax", dim, keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return self._reduce("argmin", dim, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest element; with `dim`, (values, indices); with a tensor, the element-wise maximum."""
        return self._extreme("max", "argmax", "maximum", dim, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The smallest element; with `dim`, (values, indices); with a tensor, the element-wise minimum."""
        return self._extreme("min", "argmin", "minimum", dim, keepdim)

    def _extreme(self, reduce: str, arg: str, binary: str, dim: Any, keepdim: bool) -> Any:
        if isinstance(dim, Tensor):
            return record(OPS[binary], (self, dim), ())
        if dim is None:
            return self._reduce(reduce, None, False)
        index = self._reduce(arg, dim, True)
        axis = normalize_axis(reduce, dim, self.ndim)
        values = record(OPS["gather"], (self, index), (axis,)) if self.ndim else self
        if not keepdim and self.ndim:
            return Pair(values.squeeze(axis), index.squeeze(axis))
        return Pair(values, index)

    def softmax(self, dim: int, dtype: Any = None) -> Tensor:
        x = self if dtype is None else self._cast(as_dtype(dtype))
        return record(OPS["softmax"], (x,), (normalize_axis("softmax", dim, self.ndim),))

    def log_softmax(self, dim: int, dtype: Any = None) -> Tensor:
        x = self if dtype is None else self._cast(as_dtype(dtype))
        return record(OPS["log_softmax"], (x,), (normalize_axis("log_softmax", dim, self.ndim),))

    def cumsum(self, dim: int) -> Tensor:
        op = OPS["cumsum"]
        return record(op, (self,), op.bind({"axis": normalize_axis("cumsum", dim, self.ndim)}))

    def cumprod(self, dim: int) -> Tensor:
        op = OPS["cumprod"]
        return record(op, (self,), op.bind({"axis": normalize_axis("cumprod", dim, self.ndim)}))

    def gather(self, dim: int, index: Tensor) -> Tensor:
        return record(OPS["gather"], (self, index), (normalize_axis("gather", dim, self.ndim),))

    take_along_dim = lambda self, indices, dim: self.gather(dim, indices)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return record(OPS["take"], (self, index), (normalize_axis("index_select", dim, self.ndim),))

    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        return record(OPS["scatter_add"], (self, index, src), (normalize_axis("scatter_add", dim, self.ndim),))

    def scatter(self, dim: int, index: Tensor, src: Any) -> Tensor:
        if not isinstance(src, Tensor):
            src = full(index.shape, src, dtype=self.dtype)
        return record(OPS["scatter"], (self, index, src), (normalize_axis("scatter", dim, self.ndim),))

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        op = OPS["argsort"]
        return record(
            op, (self,), op.bind({"axis": normalize_axis("argsort", dim, self.ndim), "descending": descending})
        )

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Pair:
        index = self.argsort(dim, descending)
        return Pair(self.gather(dim, index) if self.ndim else self, index)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
        d = normalize_axis("topk", dim, self.ndim)
        if not 0 <= k <= (self.shape[d] if self.ndim else 1):
            raise ValueError(f"topk: k={k} is more than the extent {int(self.shape[d])} of dimension {dim}")
        index = self.argsort(d, largest).narrow(d, 0, k)
        return Pair(self.gather(d, index), index)

    def matmul(self, other: Tensor) -> Tensor:
        return record(OPS["matmul"], (self, other), ())

    mm = bmm = dot = mv = matmul

    def tril(self, diagonal: int = 0) -> Tensor:
        return record(OPS["tril"], (self,), (diagonal,))

    def triu(self, diagonal: int = 0) -> Tensor:
        return record(OPS["triu"], (self,), (diagonal,))

    def new_zeros(self, *size: Any, dtype: Any = None) -> Tensor:
        return zeros(*size, dtype=dtype or self.dtype)

    def new_ones(self, *size: Any, dtype: Any = None) -> Tensor:
        return ones(*size, dtype=dtype or self.dtype)

    def new_empty(self, *size: Any, dtype: Any = None) -> Tensor:
        return empty(*size, dtype=dtype or self.dtype)

    def new_full(self, size: Any, value: Any, dtype: Any = None) -> Tensor:
        return full(size, value, dtype=dtype or self.dtype)

    def new_tensor(self, data: Any) -> Tensor:
        return tensor(data, dtype=self.dtype)

    def equal(self, other: Tensor) -> bool:
        return tuple(self.shape) == tuple(other.shape) and bool((self == other).all())

    def allclose(self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
        return bool(np.allclose(self.numpy(), other.numpy(), rtol, atol, equal_nan))


_to_int = int


def __builtins_int(x: Any) -> int:
    return _to_int(x)


class Pair(tuple):
    """(values, indices), by position or by name."""

    __slots__ = ()

    def __new__(cls, values: Tensor, indices: Tensor) -> Pair:
        return tuple.__new__(cls, (values, indices))

    values = property(lambda self: self[0])
    indices = property(lambda self: self[1])


class _HookHandle:
    """What ``register_hook`` returns; ``remove()`` takes the hook away."""

    def __init__(self, table: dict, hook: Callable):
        self._table, self._key = table, object()
        table[self._key] = hook

    def remove(self) -> None:
        self._table.pop(self._key, None)


recorder.tensor_class = Tensor

_UNARY_METHODS = (
    "abs neg sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc sigmoid floor ceil round trunc frac isnan isinf isfinite logical_not relu lgamma digamma "
    "real imag conj angle"
).split()
_BINARY_METHODS = (
    "add sub mul div floor_divide remainder fmod maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor atan2 copysign hypot logaddexp"
).split()


def _install() -> None:
    def unary(name: str) -> Callable:
        def method(self: Tensor) -> Tensor:
            return record(OPS[name], (self,), OPS[name].defaults)

        method.__name__ = name
        method.__doc__ = f"Element-wise; see ``lezero.{name}``."
        return method

    def binary(name: str) -> Callable:
        def method(self: Tensor, other: Any) -> Tensor:
            return record(OPS[name], (self, other), ())

        method.__name__ = name
        method.__doc__ = f"Element-wise with broadcasting and promotion; see ``lezero.{name}``."
        return method

    def in_place(method: Callable) -> Callable:
        def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return self._set(method(self, *args, **kwargs))

        write.__doc__ = "The same, in place."
        return write

    def cast(name: str, dtype: DType) -> Callable:
        def method(self: Tensor) -> Tensor:
            return self._cast(dtype)

        method.__name__ = name
        return method

    # In the class body these three would hide the builtins that its annotations mean.
    for name, dtype in (("bool", dt.bool_), ("int", dt.int32), ("float", dt.float32)):
        setattr(Tensor, name, cast(name, dtype))
    for name in _UNARY_METHODS:
        if name in OPS and name not in vars(Tensor):
            setattr(Tensor, name, unary(name))
            setattr(Tensor, name + "_", in_place(getattr(Tensor, name)))
    for name in _BINARY_METHODS:
        if name in OPS and name not in vars(Tensor):
            setattr(Tensor, name, binary(name))
            setattr(Tensor, name + "_", in_place(getattr(Tensor, name)))

    def add(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
        return self + (other if alpha == 1 else other * alpha)

    def sub(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
        return self - (other if alpha == 1 else other * alpha)

    def addcmul(self: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
        return self + (a * b if value == 1 else a * b * value)

    def addcdiv(self: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
        return self + (a / b if value == 1 else a / b * value)

    def lerp(self: Tensor, end: Tensor, weight: Any) -> Tensor:
        return self + (end - self) * weight

    for f in (add, sub, addcmul, addcdiv, lerp):
        setattr(Tensor, f.__name__, f)
        setattr(Tensor, f.__name__ + "_", in_place(f))
    for name in ("pow",):
        setattr(Tensor, name + "_", in_place(getattr(Tensor, name)))
    Tensor.divide, Tensor.multiply, Tensor.subtract = Tensor.div, Tensor.mul, Tensor.sub  # type: ignore[attr-defined]
    for dunder, name in (
        ("__iadd__", "add"), ("__isub__", "sub"), ("__imul__", "mul"), ("__itruediv__", "div"), ("__ifloordiv__", "floor_divide"),
        ("__imod__", "remainder"), ("__ipow__", "pow"), ("__iand__", "bitwise_and"), ("__ior__", "bitwise_or"),
        ("__ixor__", "bitwise_xor"),
    ):  # fmt: skip
        setattr(Tensor, dunder, in_place(getattr(Tensor, name)))


def _sizes(args: tuple) -> tuple[int, ...]:
    """(2, 3) from f(2, 3), f((2, 3)) and f([2, 3])."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    return tuple(a if isinstance(a, int) else _extent(a) for a in args)


def _extent(value: Any) -> int:
    try:
        return as_index(value)
    except TypeError:
        raise TypeError(f"sizes and dimensions are ints, got {value!r} of type {type(value).__name__}") from None


def _unpickle(cls: type, data: bytes, dtype: str, shape: tuple, requires_grad: bool, dynamic: tuple) -> Tensor:
    t = _new(cls)
    t._buffer = Buffer(np.frombuffer(bytearray(data), dt.by_name(dtype).numpy).reshape(shape))
    t._requires_grad, t._dynamic = requires_grad, dynamic
    return t


# -- views that can be written through ------------------------------------------------------------------------


def _back(name: str) -> Callable:
    def register(rule: Callable) -> Callable:
        WRITE_BACK[name] = rule
        return rule

    return register


@_back("detach")
def _(base: Tensor, view: Tensor) -> Tensor:
    return record(OPS["identity"], (view,), ())


@_back("reshape")
def _(base: Tensor, view: Tensor, shape: tuple) -> Tensor:
    return record(OPS["reshape"], (view,), (tuple(base.shape),))


@_back("permute")
def _(base: Tensor, view: Tensor, axes: tuple) -> Tensor:
    return record(OPS["permute"], (view,), (tuple(axes.index(i) for i in range(len(axes))),))


@_back("slice")
def _(base: Tensor, view: Tensor, starts: tuple, stops: tuple, steps: tuple) -> Tensor:
    return record(OPS["slice_update"], (base, view), (starts, stops, steps))


# -- making tensors -------------------------------------------------------------------------------------------


def _new(cls: type[Tensor] = Tensor) -> Tensor:
    return cls.__new__(cls)


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
    """A tensor holding a copy of `data`: a number, nested sequences, a NumPy array or anything with ``__array__``.

    Python floats become the default dtype, ints int64; arrays keep theirs.
    """
    if isinstance(data, Tensor):
        array = np.array(data._realized().array, copy=True, order="C")
    elif isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        array = np.stack([np.asarray(x.numpy() if isinstance(x, Tensor) else x) for x in data])
    else:
        try:
            array = np.array(data, copy=True, order="C")
        except ValueError as e:
            raise ValueError(f"tensor: the nested sequences are not of equal lengths ({e})") from None
        if not isinstance(data, (np.ndarray, np.generic)) and not hasattr(data, "__array__"):
            if array.dtype == np.float64:
                array = array.astype(dt.default_dtype().numpy)
            elif array.dtype == np.complex128:
                array = array.astype(dt.default_dtype().to_complex().numpy)
            elif array.size == 0 and dtype is None:
                array = array.astype(dt.default_dtype().numpy)
    if array.dtype == object:
        raise TypeError(
            "tensor: a number, nested sequences of numbers or an array is needed, and integers fit 64 bits; "
            f"got {reprlib.repr(data)} ({type(data).__name__})"
        )
    if not array.dtype.isnative:  # files in network order, as MNIST's
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is not None:
        array = array.astype(as_dtype(dtype).numpy)
    else:
        as_dtype(array.dtype)
    _check_device(device)
    return _from_array(array, requires_grad)


as_tensor = tensor


def _check_device(device: Any) -> None:
    if device is not None and str(device).split(":")[0] != "cpu":
        raise ValueError(f"there is no device {device!r} here; this machine has 'cpu'")


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor with a copy of the array's values and its dtype."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: a NumPy array is needed, got {type(array).__name__}")
    return tensor(array)


def from_dlpack(source: Any, *, copy: bool | None = None) -> Tensor:
    """A tensor of what another library holds, by the DLPack protocol.

    Parameters
    ----------
    source : object with ``__dlpack__``
    copy : bool
        None and True copy.  False shares the memory: whoever owns it must not write to it while tensors computed from it
        have not been run.  It is never written to from here.

    Raises
    ------
    BufferError
        With ``copy=False``, when the elements do not lie in row-major order.
    """
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack: an object with __dlpack__ is needed, got {type(source).__name__}")
    array = np.from_dlpack(source)
    if copy is None or copy:
        return tensor(array)
    as_dtype(array.dtype)
    if not array.flags.c_contiguous:
        raise BufferError("from_dlpack(copy=False): the elements must lie in row-major order; use copy=True")
    t = _from_array(array)
    t._buffer = Borrowed(array)
    return t


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


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`fill_value` everywhere."""
    size = (size,) if isinstance(size, int) else tuple(size)
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, Tensor) else as_dtype(type(fill_value))
    if isinstance(fill_value, (bool, int)) or (isinstance(fill_value, float) and repr(fill_value) in ("0.0", "1.0")):
        return _source("full", dtype, requires_grad, device, shape=size, value=fill_value)
    _check_device(device)
    value = fill_value if isinstance(fill_value, Tensor) else _number(fill_value)
    t = record(OPS["expand"], (value._cast(as_dtype(dtype)),), (size,))
    return t.requires_grad_() if requires_grad else t


def _number(value: Any) -> Tensor:
    """A Python number as a 0-d tensor whose value is a run-time input."""
    dtype = {float: dt.float64, complex: dt.complex128}.get(type(value))
    from lezero.runtime.inputs import scalar_input

    return scalar_input(lambda: value, dtype or as_dtype(type(value)))


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    return _source("full", dtype or dt.default_dtype(), requires_grad, device, shape=_sizes(size), value=0)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    return _source("full", dtype or dt.default_dtype(), requires_grad, device, shape=_sizes(size), value=1)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """As ``zeros``: there is no uninitialised memory to be seen here."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def zeros_like(t: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    return zeros(t.shape, dtype=dtype or t.dtype, requires_grad=requires_grad)


def ones_like(t: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    return ones(t.shape, dtype=dtype or t.dtype, requires_grad=requires_grad)


def full_like(t: Tensor, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    return full(t.shape, fill_value, dtype=dtype or t.dtype, requires_grad=requires_grad)


empty_like = zeros_like


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, … before `end`."""
    if end is None:
        start, end = 0, start
    if dtype is None:
        dtype = dt.default_dtype() if any(isinstance(v, float) for v in (start, end, step)) else dt.int64
    return _source("arange", dtype, requires_grad, device, start=start, stop=end, step=step)


def linspace(
    start: float, end: float, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    return _source(
        "linspace", dtype or dt.default_dtype(), requires_grad, device, start=float(start), stop=float(end), steps=steps
    )


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    if n < 0 or (m is not None and m < 0):
        raise ValueError(f"eye: extents must not be negative, got {(n, m)}")
    rows, columns = arange(n).reshape(n, 1), arange(n if m is None else m)
    t = (rows == columns)._cast(as_dtype(dtype or dt.default_dtype()))
    return t.requires_grad_() if requires_grad else t


def _random(name: str, shape: tuple, dtype: Any, generator: Any, requires_grad: bool, **attrs: Any) -> Tensor:
    from lezero.runtime.inputs import random_key

    op = OPS[name]
    t = record(op, random_key(generator), op.bind({"shape": shape, "dtype": as_dtype(dtype), **attrs}))
    return t.requires_grad_() if requires_grad else t


def rand(
    *size: Any, dtype: Any = None, device: Any = None, generator: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform in [0, 1)."""
    _check_device(device)
    return _random("uniform", _sizes(size), dtype or dt.default_dtype(), generator, requires_grad)


def randn(
    *size: Any, dtype: Any = None, device: Any = None, generator: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normally distributed, mean 0 and variance 1."""
    _check_device(device)
    return _random("normal", _sizes(size), dtype or dt.default_dtype(), generator, requires_grad)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: Any = None, generator: Any = None) -> Tensor:
    """Integers from `low` (0 if left out) to `high` - 1."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise ValueError(f"randint: high={high} must be greater than low={low}")
    return _random("randint", tuple(size), dtype or dt.int64, generator, False, low=low, high=high)


def randperm(n: int, *, generator: Any = None) -> Tensor:
    return rand(n, dtype=dt.float64, generator=generator).argsort()


def rand_like(t: Tensor, *, dtype: Any = None) -> Tensor:
    return rand(t.shape, dtype=dtype or t.dtype)


def randn_like(t: Tensor, *, dtype: Any = None) -> Tensor:
    return randn(t.shape, dtype=dtype or t.dtype)


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join along an existing dimension (`axis` is another name for it); dtypes that differ are promoted."""
    tensors = tuple(tensors)
    if not tensors:
        raise ValueError("cat: at least one tensor is needed")
    dim = dim if axis is None else axis
    if len(dtypes := dict.fromkeys(t.dtype for t in tensors)) > 1:
        wide = functools.reduce(dt.promote, dtypes)
        tensors = tuple(t._cast(wide) for t in tensors)
    return record(OPS["concatenate"], tensors, (normalize_axis("cat", dim, tensors[0].ndim),))


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Join along a new dimension (`axis` is another name for it)."""
    tensors = tuple(tensors)
    dim = dim if axis is None else axis
    if not tensors:
        raise ValueError("stack: at least one tensor is needed")
    return cat([t.unsqueeze(normalize_axis("stack", dim, t.ndim + 1)) for t in tensors], dim)


def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """x where `condition` holds, y elsewhere."""
    return record(OPS["where"], (condition, x, y), ())


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Sums of products over named dimensions, as in NumPy."""
    return record(OPS["einsum"], operands, OPS["einsum"].bind({"equation": equation}))


# -- modes ----------------------------------------------------------------------------------------------------


class set_grad_enabled(contextlib.ContextDecorator):
    """Whether gradients can be asked for of what is recorded: from the call on, or as a context or decorator."""

    def __init__(self, mode: bool):
        self._before, self._mode = STATE.grad_mode, bool(mode)
        STATE.grad_mode = self._mode

    def __enter__(self) -> None:
        STATE.grad_mode = self._mode

    def __exit__(self, *error: Any) -> None:
        STATE.grad_mode = self._before


class no_grad(contextlib.ContextDecorator):
    """Context and decorator: what is computed inside does not track gradients."""

    _mode = False

    def __enter__(self) -> None:
        self._stack = [*getattr(self, "_stack", ()), STATE.grad_mode]
        STATE.grad_mode = self._mode

    def __exit__(self, *error: Any) -> None:
        STATE.grad_mode = self._stack.pop()

    def _recreate_cm(self) -> Any:
        return type(self)()

    def __call__(self, func: Callable) -> Callable:  # type: ignore[override]
        return super().__call__(func)


class enable_grad(no_grad):
    """Context and decorator: gradients are tracked inside a ``no_grad`` block."""

    _mode = True


class inference_mode(no_grad):
    """As ``no_grad``."""

    def __init__(self, mode: bool = True):
        self._mode = not mode


def is_grad_enabled() -> bool:
    return STATE.grad_mode


_install()
