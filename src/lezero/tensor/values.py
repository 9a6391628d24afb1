"""Reading values: as Python numbers, arrays, text, copies and pickles.  Reading runs what has been recorded."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lezero.graph import dtype as dt
from lezero.hal.buffer import Buffer, export
from lezero.runtime.leaves import import_handle
from lezero.runtime.recording import STATE
from lezero.runtime.run import run_now, run_recording
from lezero.tensor.core import Core
from lezero.tensor.modes import no_grad
from lezero.tensor.printing import described

if TYPE_CHECKING:
    from lezero.tensor import Tensor


class Values(Core):
    """What a tensor holds, for everybody who is no tensor."""

    def _realized(self) -> Buffer:
        if self._buffer is None:
            if self._rec is None:
                import_handle(STATE.recording, self)
            if self._rec is STATE.recording:
                run_now(self)
            else:
                run_recording(self._rec, self)  # type: ignore[arg-type]
        assert self._buffer is not None
        return self._buffer

    def realize(self) -> Self:
        """Run what has been recorded, so that this tensor holds its value."""
        self._realized()
        return self

    def _looked_at(self) -> Any:
        """The buffer, for somebody who goes by the values: a captured function would go by those of its first calls for ever."""
        if STATE.capture is not None:
            STATE.capture.looked()
        t: Any = self
        while t._buffer is None and t._view is not None and t._view[0].name == "detach":
            t = t._base  # has the same value, and there it may lie already
        return t._buffer if t._buffer is not None else self._realized()

    def numpy(self) -> np.ndarray:
        """The values as a read-only array, without a copy.

        Also of a tensor that needs a gradient, without ``detach()``: values never change, so reading them harms nothing.  What
        NumPy computes of the array has no gradient.
        """
        return export(self._looked_at())

    def item(self) -> Any:
        """The value of a tensor of one element as a Python number."""
        array = self._looked_at().array
        if array.size != 1:
            raise ValueError(f"item(): only for a tensor of one element, this one has shape {array.shape}")
        value = array.reshape(())[()]
        return float(value) if self.dtype in dt.FLOATING else value.item()

    def tolist(self) -> Any:
        """The elements as Python numbers in nested lists; a number where there are no dimensions.  Reading runs what is pending."""
        array = self._looked_at().array
        return array.astype(np.float32).tolist() if self.dtype in (dt.bfloat16, dt.float16) else array.tolist()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ValueError(
                f"whether a tensor of shape {tuple(int(d) for d in self.shape)} is true is ambiguous: ask for .any() or .all()"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(
                f"only integer tensors of one element can be an index, this one is {self.dtype.name} (a list or a string times "
                "a tensor asks for one: lz.tensor(values) can be multiplied)"
            )
        return int(self.item())

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(int(self.shape[0])))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __repr__(self) -> str:
        """The elements (see ``lezero.set_printoptions``), and what does not follow from them: dtype, shape of nothing, gradient."""
        array = self._realized().array
        words = []
        if array.size == 0 and array.shape != (0,):
            words.append(f"shape={array.shape}")
        if self.dtype not in (dt.default_dtype(), dt.default_dtype().to_complex(), dt.int64, dt.bool_):
            words.append(f"dtype={self.dtype!r}")
        if self.device != "cpu":
            words.append(f"device='{self.device}'")
        grad_fn = self.grad_fn
        if grad_fn is not None:
            words.append(f"grad_fn=<{grad_fn.operation}>")
        elif self.requires_grad:
            words.append("requires_grad=True")
        return described(array, words)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else repr(self)

    def _own_attributes(self) -> dict[str, Any]:
        """What a user or a subclass has set on it."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __deepcopy__(self, memo: dict) -> Self:
        """A leaf with values, gradient and attributes of its own; a view becomes a tensor by itself."""
        if not self.is_leaf:
            raise RuntimeError("deepcopy: only leaves can be copied; use .detach().clone()")
        with no_grad():
            made = type(self).__new__(type(self))
            memo[id(self)] = made
            made.__dict__.update(copy.deepcopy(self._own_attributes(), memo))
            made._buffer = Buffer(np.array(self._realized().array, copy=True, order="C"))
            made._dynamic = self._dynamic
            made._requires_grad = self._requires_grad
            if self._grad is not None:
                made._grad = copy.deepcopy(self._grad, memo)
        return made

    def __copy__(self) -> Self:
        """A leaf that shares the value and what is written to it, of the same class and with the same attributes."""
        made: Any = self.detach()
        made.__class__ = type(self)
        made.__dict__.update(self._own_attributes())
        return made.requires_grad_(self._requires_grad)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        """Values, ``requires_grad`` and attributes, but no gradient; from protocol 5 on the values can go out of band."""
        array = np.asarray(self._realized().array, order="C")
        plain = array.view(np.uint16) if self.dtype is dt.bfloat16 else array
        data = pickle.PickleBuffer(plain) if protocol >= 5 else array.tobytes()  # type: ignore[arg-type]
        made = (type(self), data, self.dtype.name, array.shape, self._requires_grad, self._dynamic)
        return _unpickle, made, self._own_attributes() or None


def _unpickle(cls: type[Core], data: Any, dtype: str, shape: tuple, requires_grad: bool, dynamic: tuple) -> Tensor:
    t: Any = cls.__new__(cls)
    t._buffer = Buffer(np.frombuffer(bytearray(data), dt.by_name(dtype).numpy).reshape(shape))
    t._requires_grad, t._dynamic = requires_grad, dynamic
    return t
