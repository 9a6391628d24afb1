"""``autocast``: operations choose the precision they compute in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Self

from lezero.amp.lists import LOW, WIDE, WIDEST
from lezero.device import devices
from lezero.graph.dtype import DType, as_dtype, bfloat16, float16, float32, float64, promote
from lezero.graph.place import Device
from lezero.ops.base import REGISTRY, Op
from lezero.runtime.recording import STATE
from lezero.switched import switched
from lezero.tensor import Tensor

HALF = (float16, bfloat16)


class Policy:
    """What is done to operands before an operation is recorded; one for each low type, so that identity says which."""

    def __init__(self, dtype: DType):
        self.dtype = dtype
        rules = ((LOW, self._low), (WIDE, _wide), (WIDEST, _widest))
        self.rules: dict[Op, Callable[[tuple], tuple]] = {REGISTRY[name]: f for names, f in rules for name in names}

    def __call__(self, op: Op, operands: tuple) -> tuple:
        rule = self.rules.get(op)
        return operands if rule is None else rule(operands)

    def _low(self, operands: tuple) -> tuple:
        return tuple([_cast(t, self.dtype) if _narrows(t) else t for t in operands])

    def __repr__(self) -> str:
        return f"autocast to {self.dtype.name}"


def _narrows(t: Any) -> bool:
    """Whether autocast changes an operand's dtype: float64 was asked for on purpose, and integers have no precision to lose."""
    return isinstance(t, Tensor) and t.dtype.is_floating_point and t.dtype is not float64


def _cast(t: Tensor, dtype: DType) -> Tensor:
    return t._cast(dtype)


def _wide(operands: tuple) -> tuple:
    return tuple([_cast(t, float32) if isinstance(t, Tensor) and t.dtype in HALF else t for t in operands])


def _widest(operands: tuple) -> tuple:
    floating = [t.dtype for t in operands if isinstance(t, Tensor) and t.dtype.is_floating_point]
    if len(floating) < 2:
        return operands
    dtype = functools.reduce(promote, floating)
    return tuple([_cast(t, dtype) if isinstance(t, Tensor) and t.dtype.is_floating_point else t for t in operands])


POLICIES = {dtype: Policy(dtype) for dtype in HALF}


class autocast(switched, contextlib.ContextDecorator):
    """Context and decorator: products run in a low precision, and what needs range in float32.

    Inside, matrix products, convolutions, linear layers and attention cast their floating operands (other than float64) to
    `dtype`; exponentials, logarithms, powers, softmax, layer and group norm, losses, sums and cumulative operations cast
    operands of half precision to float32; what joins tensors casts them to the widest dtype among them.  Everything else
    computes in the dtype of its operands; batch norm computes in float32 and gives its input's dtype.  Parameters stay as
    they are and get gradients of their own dtype.  The lists are in ``lezero.amp.lists``.

    It holds for the thread that entered it.  A block inside may choose another type, or none with ``enabled=False``.
    ``backward()`` computes each gradient in the precision its operation was recorded in, inside the block or after it.  A
    function captured by ``lz.jit`` is recorded anew for each precision it is called under.

    Parameters
    ----------
    device_type : str
        The kind of device the operations run on, such as ``"cpu"``.
    dtype : DType
        bfloat16 (the default) or float16; float16 needs a :class:`GradScaler` in training.
    enabled : bool
        False leaves everything in the dtype it has.
    cache_enabled : bool
        Taken for PyTorch's sake.  A parameter used several times in one recording is always cast once.

    Raises
    ------
    TypeError, ValueError
        When the device is not there, or `dtype` is not a half type.

    Examples
    --------
    >>> with lz.amp.autocast("cpu", dtype=lz.bfloat16):
    ...     loss = F.cross_entropy(model(x), y)
    >>> loss.backward()
    """

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None):
        check_device("autocast", device_type)
        low = bfloat16 if dtype is None else as_dtype(dtype)
        if low not in HALF:
            raise TypeError(f"autocast: dtype is bfloat16 or float16, got {low.name}; enabled=False switches it off")
        self.device_type, self.dtype, self.enabled = str(device_type), low, bool(enabled)
        super().__init__(STATE, "autocast", POLICIES[low] if enabled else None)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def _recreate_cm(self) -> autocast:
        return autocast(self.device_type, self.dtype, self.enabled)  # each call, and each thread, has its own

    def __repr__(self) -> str:
        return f"autocast({self.device_type!r}, dtype={self.dtype!r}, enabled={self.enabled})"


def check_device(name: str, device_type: Any) -> None:
    """Refuse what is no device, or none of a kind that is there."""
    if not isinstance(device_type, str):
        raise TypeError(f"{name}: the first argument is a device such as 'cpu', got a {type(device_type).__name__}")
    kinds = sorted({Device(name).type for name in devices()})
    if Device(device_type).type not in kinds:
        raise ValueError(f"{name}: there is no device {device_type!r} here; the backend in use has {', '.join(kinds)}")


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether this thread is inside an autocast block that is on."""
    check_device("autocast", device_type)
    return STATE.autocast is not None


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """The low type of the autocast block this thread is in; bfloat16, the default, outside."""
    check_device("autocast", device_type)
    return bfloat16 if STATE.autocast is None else STATE.autocast.dtype


def custom_fwd(fwd: Callable | None = None, *, device_type: str = "cpu", cast_inputs: Any = None) -> Any:
    """Decorator of ``forward`` of an ``autograd.Function``: it runs under the autocast of its caller, and so does ``backward``
    if that is decorated with :func:`custom_bwd`.

    cast_inputs : a floating dtype that floating arguments are cast to (not float64 ones); autocast is off inside then
    """
    check_device("autocast", device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._autocast = STATE.autocast if cast_inputs is None else None
        if cast_inputs is None or STATE.autocast is None:
            return fwd(ctx, *args, **kwargs)
        dtype = as_dtype(cast_inputs)
        given = [_cast(a, dtype) if _narrows(a) else a for a in args]
        with switched(STATE, "autocast", None):
            return fwd(ctx, *given, **{k: _cast(v, dtype) if _narrows(v) else v for k, v in kwargs.items()})

    return forward


def custom_bwd(bwd: Callable | None = None, *, device_type: str = "cpu") -> Any:
    """Decorator of ``backward`` of an ``autograd.Function`` whose ``forward`` has :func:`custom_fwd`."""
    check_device("autocast", device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *grads: Any) -> Any:
        with switched(STATE, "autocast", ctx._autocast):
            return bwd(ctx, *grads)

    return backward
