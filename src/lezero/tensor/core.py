"""The core of a tensor: what it is (shape, dtype, device), and how operations are applied to it."""

from __future__ import annotations

from math import prod
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import lezero.ops  # noqa: F401  (fills the registry)
from lezero.graph import dtype as dt
from lezero.graph.dtype import DType, as_dtype
from lezero.graph.place import Device
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import Op
from lezero.ops.operand import Operand
from lezero.runtime.leaves import import_handle, kind_of
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE, Handle

if TYPE_CHECKING:
    from lezero.tensor import Tensor

_CPU = Device("cpu")


class Core(Operand, Handle):
    """What all parts of ``Tensor`` build on; each part is a class with one idea, and ``Tensor`` inherits from all of them."""

    if TYPE_CHECKING:  # what the other parts define, and what functions.py installs

        def __getattr__(self, name: str) -> Any: ...

    def _apply(self, op: Op, operands: tuple, attrs: tuple) -> Tensor:
        try:
            return record(op, operands, attrs)
        except TypeError:
            if not any(isinstance(x, np.ndarray) for x in operands):
                raise
        from lezero.tensor.interop import from_array

        return record(op, tuple(from_array(x) if isinstance(x, np.ndarray) else x for x in operands), attrs)

    def _accepts(self, other: Any) -> bool:
        # Arrays become tensors: NumPy would answer with an array, without a gradient.
        if isinstance(other, (bool, int, float, complex, Handle, np.generic, np.ndarray)):
            return True
        if (
            type(other).__module__.partition(".")[0] == "torch"
        ):  # Python would say that Tensor and Tensor do not go together
            raise TypeError(f"expected a Tensor or a number, got {kind_of(other)}")
        return False

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
        """The element type."""
        if self._rec is not None:
            return self._node.dtype
        if self._buffer is None:
            import_handle(STATE.recording, self)
            return self._node.dtype
        return as_dtype(self._buffer.array.dtype)

    @property
    def device(self) -> Device:
        """Where it is: a string with ``type`` and ``index``."""
        if self._rec is not None:
            return Device(self._node.device)
        return _CPU if self._buffer is None or self._buffer.device == "cpu" else Device(self._buffer.device)

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        if self._rec is not None:
            return len(self._node.shape)
        return len(self.shape)

    @property
    def weak(self) -> bool:
        """Whether it comes from a Python number, whose dtype gives way to that of tensors."""
        return self._weak

    def dim(self) -> int:
        """How many dimensions there are."""
        return self.ndim

    ndimension = dim

    def numel(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    nelement = numel

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(prod(self.shape)) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the dtype is a floating one."""
        return self.dtype.is_floating_point

    def is_signed(self) -> bool:
        """Whether the dtype has negative numbers."""
        return self.dtype.kind not in "bu"

    def is_complex(self) -> bool:
        """Whether the dtype is a complex one."""
        return self.dtype.is_complex

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    # -- dtype and place ---

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """With another dtype or on another device: ``t.to(lz.float16)``, ``t.to("cpu")``, ``t.to(other)``.

        The tensor itself where that changes nothing, unless `copy` (after `non_blocking`, where given by position).
        """
        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        kwargs.pop("non_blocking", None), kwargs.pop("memory_format", None)
        copy = kwargs.pop("copy", False)
        if kwargs:
            raise TypeError(f"to: unknown argument {', '.join(kwargs)}")
        flags = [a for a in args if isinstance(a, bool)]
        copy = flags[1] if len(flags) > 1 else copy
        for a in args:
            if isinstance(a, Core):
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
        moved = self if dtype is None else self._cast(as_dtype(dtype))
        return moved.clone() if copy and moved is self else moved

    def _cast(self, dtype: DType) -> Any:
        return self if self.dtype is dtype else record(OPS["cast"], (self,), (dtype,))

    def type(self, dtype: Any = None) -> Any:
        """With another dtype; without an argument, the dtype's name."""
        return repr(self.dtype) if dtype is None else self._cast(as_dtype(dtype))

    def type_as(self, other: Tensor) -> Tensor:
        """With the dtype of `other`."""
        return self._cast(other.dtype)

    def cpu(self) -> Self:
        """The tensor itself: it is there already."""
        return self

    def clone(self) -> Tensor:
        """A tensor of its own with the same elements, which the gradient passes."""
        return record(OPS["identity"], (self,), ())


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
