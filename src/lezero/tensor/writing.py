"""Writing: values never change, a write points the handle at another."""

from __future__ import annotations

from collections.abc import Callable
from math import log1p, pi
from typing import TYPE_CHECKING, Any, Self

from lezero.arguments import need_number, need_real
from lezero.graph.dtype import float64, iinfo
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import broadcast_shapes
from lezero.runtime import recorder
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.runtime.writes import assign
from lezero.tensor.core import Core
from lezero.tensor.creation import need_fit, rand, randint, randn, tensor

if TYPE_CHECKING:
    from lezero.tensor import Tensor


_LARGEST = {"bool": 2, "float16": 2**11 + 1, "bfloat16": 2**8 + 1, "float32": 2**24 + 1, "float64": 2**53 + 1}


def in_place(method: Callable) -> Callable:
    """`method`, written to the tensor itself."""

    def write(self: Core, *args: Any, **kwargs: Any) -> Tensor:
        return self._set(method(self, *args, **kwargs))

    write.__name__ = method.__name__ + "_"
    write.__doc__ = "The same, in place."
    return write


def _need_order(what: str, least: Any, value: Any) -> None:
    """Raise for a number below another; tensors are taken as they are."""
    if isinstance(least, Core) or isinstance(value, Core):
        return
    need_real(what, value)
    need_real("the lower end", least)
    if value < least:
        raise ValueError(f"{what} must be {least} or more, got {value}")


class Writing(Core):
    """Methods that give a tensor another value."""

    def _set(self, value: Any) -> Self:
        """Point this handle at `value`, broadcast and cast to what it is now."""
        assign(self, self._fitted(value, tuple(self.shape)))
        return self

    def _fitted(self, value: Any, shape: tuple[int, ...]) -> Any:
        """`value` with this tensor's dtype and a shape, to be written."""
        if not isinstance(value, Core):
            value = record(OPS["full"], (), ((), value, self.dtype))
        if value.dtype is not self.dtype:
            order = "biufc".replace("u", "").index
            kind = lambda d: order("i" if d.kind == "u" else d.kind)
            if kind(value.dtype) > kind(self.dtype):
                raise RuntimeError(
                    f"an in-place result of dtype {value.dtype.name} cannot be stored in {self.dtype.name}"
                )
            value = value._cast(self.dtype)
        if tuple(value.shape) != shape:
            if broadcast_shapes("in-place write", value.shape, shape) != shape:
                raise RuntimeError(f"in-place: shape {tuple(value.shape)} does not fit into {shape}")
            value = record(OPS["expand"], (value,), (shape,))
        return value

    def copy_(self, source: Any) -> Self:
        """Overwrite with `source`, broadcast and cast."""
        source = source if isinstance(source, Core) else tensor(source)
        return self._set(self._of_own_extents(source)._cast(self.dtype))

    def _of_own_extents(self, source: Any) -> Any:
        """A value that is there, with those extents as symbols that are symbols here: a weight stays one, whatever is copied into it."""
        if self._buffer is None or source._buffer is None or source._dynamic == self._dynamic:
            return source
        tracked = STATE.grad_mode and (source._requires_grad or source._history is not None)
        if tracked or source._buffer.array.shape != self._buffer.array.shape:
            return source
        made: Any = recorder.tensor_class.__new__(recorder.tensor_class)
        made._buffer, made._dynamic = source._buffer, self._dynamic
        return made

    def fill_(self, value: Any) -> Self:
        """Write one number (or a tensor without dimensions) everywhere."""
        if not isinstance(value, Core):
            need_number("fill_: the value", value)
            need_fit("fill_", value, self.dtype)
        value = (
            value
            if isinstance(value, Core)
            else value * record(OPS["full"], (), ((), 1, self.dtype))
            if self.dtype.kind in "fc"
            else value
        )
        return self._set(
            value._cast(self.dtype) if isinstance(value, Core) else record(OPS["full"], (), ((), value, self.dtype))
        )

    def zero_(self) -> Self:
        """Write zeros."""
        return self._set(record(OPS["full"], (), ((), 0, self.dtype)))

    def normal_(self, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Self:
        """Write normally distributed numbers of this mean and standard deviation."""
        _need_order("normal_: std", 0.0, std)
        return self._set(randn(*self.shape, dtype=self.dtype, generator=generator) * std + mean)

    def uniform_(self, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Self:
        """Write numbers uniform in [a, b)."""
        _need_order("uniform_: the upper end", a, b)
        return self._set(rand(*self.shape, dtype=self.dtype, generator=generator) * (b - a) + a)

    def bernoulli_(self, p: float = 0.5, generator: Any = None) -> Self:
        """Write ones with probability `p`, zeros otherwise."""
        return self._set((rand(*self.shape, generator=generator) < p)._cast(self.dtype))

    def exponential_(self, lambd: float = 1.0, generator: Any = None) -> Self:
        """Write exponentially distributed numbers of rate `lambd`."""
        return self._set((-rand(*self.shape, dtype=self.dtype, generator=generator)).log1p() / -lambd)

    def log_normal_(self, mean: float = 1.0, std: float = 2.0, generator: Any = None) -> Self:
        """Numbers whose logarithms are normally distributed."""
        _need_order("log_normal_: std", 0.0, std)
        return self._set((randn(*self.shape, dtype=self.dtype, generator=generator) * std + mean).exp())

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0, generator: Any = None) -> Self:
        """Write numbers of a Cauchy distribution with this median and half width."""
        u = rand(*self.shape, dtype=self.dtype, generator=generator)
        return self._set(((u - 0.5) * pi).tan() * sigma + median)

    def geometric_(self, p: float, generator: Any = None) -> Self:
        """How many trials of success probability `p` it took, 1 or more."""
        u = rand(*self.shape, dtype=float64, generator=generator)
        return self._set(((-u).log1p() / log1p(-p)).floor()._cast(self.dtype) + 1)

    def random_(self, low: int | None = None, high: int | None = None, generator: Any = None) -> Self:
        """Integers from `low` (0 if left out) to `high` - 1; without both, all of 0 or more that the dtype holds exactly."""
        if low is None:
            low, high = 0, _LARGEST.get(self.dtype.name) or min(iinfo(self.dtype).max, 2**63 - 2) + 1
        low, high = (0, low) if high is None else (low, high)
        return self._set(randint(low, high, tuple(self.shape), generator=generator)._cast(self.dtype))
