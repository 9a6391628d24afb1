"""Apex's levels O0 to O3, for code written for them; ``autocast`` and ``GradScaler`` are what they are made of.

====  ============  ====================  ==============  ======================
      model         norm layers           master weights  loss scale
====  ============  ====================  ==============  ======================
O0    float32       float32               no              1
O1    float32       float32, by autocast  no              dynamic (bfloat16: 1)
O2    low type      float32               float32         dynamic (bfloat16: 1)
O3    low type      low type              no              1
====  ============  ====================  ==============  ======================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lezero.amp.autocast import HALF, autocast
from lezero.amp.scaler import GradScaler
from lezero.graph.dtype import DType, as_dtype, bfloat16, float16, float32
from lezero.nn import normalization
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter
from lezero.optim.optimizer import Optimizer
from lezero.runtime import realize
from lezero.runtime.writes import assign
from lezero.tensor import Tensor, no_grad


@dataclass(frozen=True)
class _Level:
    autocasts: bool
    low: bool  # the model's parameters are of the low type
    keeps_norms: bool
    masters: bool
    scales: bool


_LEVELS = {
    "O0": _Level(autocasts=False, low=False, keeps_norms=True, masters=False, scales=False),
    "O1": _Level(autocasts=True, low=False, keeps_norms=True, masters=False, scales=True),
    "O2": _Level(autocasts=False, low=True, keeps_norms=True, masters=True, scales=True),
    "O3": _Level(autocasts=False, low=True, keeps_norms=False, masters=False, scales=False),
}
_NORMS = (
    normalization._BatchNorm, normalization._InstanceNorm, normalization.LayerNorm, normalization.RMSNorm,
    normalization.GroupNorm,
)  # fmt: skip


def initialize(
    models: Any,
    optimizers: Any = None,
    opt_level: str = "O1",
    enabled: bool = True,
    *,
    dtype: Any = float16,
    loss_scale: float | str | None = None,
    device_type: str = "cpu",
) -> Any:
    """Prepare models and optimizers for one of Apex's levels (see ``lezero.amp.apex``); they are changed and returned.

    Call it once, before the first step, and take the gradients inside :func:`scale_loss`.

    Parameters
    ----------
    models : Module or list of Modules
        In float32.  Their ``forward`` is wrapped: by autocast (O1), or in casts of floating inputs to the low type (O2, O3);
        floating outputs are cast to float32, for the loss.
    optimizers : Optimizer or list of Optimizers, optional
    opt_level : {"O0", "O1", "O2", "O3"}
    enabled : bool
        False returns everything as it is.
    dtype : float16 or bfloat16
        The low type.
    loss_scale : float or "dynamic", optional
        Instead of the level's.
    device_type : str

    Returns
    -------
    models, or (models, optimizers) where those are given; lists where lists were given

    Raises
    ------
    ValueError, TypeError
        For an unknown level, a dtype that is not a half type, models that are not float32, or what was prepared before.
    """
    level = _LEVELS.get(opt_level)
    if level is None:
        raise ValueError(
            f"amp.initialize: opt_level is one of {', '.join(_LEVELS)} (with the letter O), got {opt_level!r}"
        )
    low = as_dtype(dtype)
    if low not in HALF:
        raise TypeError(f"amp.initialize: dtype is float16 or bfloat16, got {low.name}")
    if loss_scale is not None and loss_scale != "dynamic" and not _is_positive(loss_scale):
        raise ValueError(f"amp.initialize: loss_scale is a positive number or 'dynamic', got {loss_scale!r}")
    given_models, given_optimizers = _listed(models, Module), _listed(optimizers, Optimizer)
    if enabled:
        _refuse_prepared(given_models, given_optimizers)
        values = _prepare_models(given_models, level, low, device_type)
        if loss_scale is None:
            loss_scale = "dynamic" if level.scales and low is not bfloat16 else 1.0
        for optimizer in given_optimizers:
            _Scaling(optimizer, values if level.masters else {}, loss_scale)
    return models if optimizers is None else (models, optimizers)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _listed(given: Any, kind: type) -> list[Any]:
    found = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for x in found:
        if not isinstance(x, kind):
            raise TypeError(f"amp.initialize: a {kind.__name__} or a list of them is needed, got {type(x).__name__}")
    return found


def _refuse_prepared(models: Sequence[Module], optimizers: Sequence[Optimizer]) -> None:
    if any("_amp_level" in vars(m) for m in models) or any("_amp" in vars(o) for o in optimizers):
        raise ValueError("amp.initialize: a model or optimizer has been initialized before")
    for model in models:
        for name, p in model.named_parameters():
            if p.dtype in HALF:
                raise ValueError(f"amp.initialize: the parameter {name} is {p.dtype.name}; give models in float32")


# -- models ------------------------------------------------------------------------------------------------------


def _prepare_models(models: Sequence[Module], level: _Level, low: DType, device_type: str) -> dict[int, Tensor]:
    """Convert and wrap models.  The values in float32 of those parameters that are of the low type now, by id."""
    values: dict[int, Tensor] = {}
    for model in models:
        model._amp_level = level  # type: ignore[assignment]
        if level.autocasts:
            _wrap(model, lambda forward: _casting(autocast(device_type, low)(forward), None))
        if level.low:
            values |= _lower(model, level, low)
            _wrap(model, lambda forward: _casting(forward, low))
    return values


def _lower(model: Module, level: _Level, low: DType) -> dict[int, Tensor]:
    values = {}
    with no_grad():
        for module in model.modules():
            if level.keeps_norms and isinstance(module, _NORMS):
                continue
            for p in module.parameters(recurse=False):
                if p.dtype is float32 and id(p) not in values:
                    values[id(p)] = p.detach().clone()
    realize(*values.values())
    for module in model.modules():
        if not (level.keeps_norms and isinstance(module, _NORMS)):
            _convert_own(module, low)
    return values


def _convert_own(module: Module, low: DType) -> None:
    """A module's own parameters and buffers, and not those of its children."""
    with no_grad():
        for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if t.dtype is float32:
                assign(t, t.to(low))


def _wrap(model: Module, change: Callable[[Callable], Callable]) -> None:
    """Give a model another ``forward``, by a class of its own, so that copies of it call theirs."""
    kind = type(model)
    body = {"forward": change(kind.forward), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    model.__class__ = type(kind.__name__, (kind,), body)


def _casting(forward: Callable, low: DType | None) -> Callable:
    """`forward` with floating arguments cast to `low` and results to float32, in which the loss is computed."""

    @functools.wraps(forward)
    def wrapped(self: Module, *args: Any, **kwargs: Any) -> Any:
        if low is not None:
            args, kwargs = _map(args, low), _map(kwargs, low)
        return _map(forward(self, *args, **kwargs), float32)

    return wrapped


def _map(tree: Any, dtype: DType) -> Any:
    """Floating tensors cast; containers as they are."""
    if isinstance(tree, Tensor):
        return tree.to(dtype) if tree.dtype.is_floating_point else tree
    if isinstance(tree, dict):
        return {k: _map(v, dtype) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        values = [_map(v, dtype) for v in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return tree


# -- optimizers --------------------------------------------------------------------------------------------------


class _Scaling:
    """What an optimizer's ``step`` and ``zero_grad`` do besides.

    pairs : (the model's parameter in the low type, the float32 one the optimizer trains in its place)
    """

    def __init__(self, optimizer: Optimizer, values: dict[int, Tensor], loss_scale: float | str):
        self.optimizer = optimizer
        self.scaler = GradScaler() if loss_scale == "dynamic" else None
        self.factor = 1.0 if loss_scale == "dynamic" else float(loss_scale)
        self.pairs: list[tuple[Parameter, Parameter]] = []
        self.ready = False  # gradients are divided by the scale, and those of the masters are there
        self.inside = False
        for group in optimizer.param_groups:
            group["params"] = [self._master(p, values) for p in group["params"]]
        optimizer._amp = self  # type: ignore[attr-defined]
        optimizer.step, optimizer.zero_grad = self.step, self.zero_grad  # type: ignore[method-assign]
        optimizer.register_step_post_hook(lambda *_: self._copy_back())

    def _master(self, p: Any, values: dict[int, Tensor]) -> Any:
        value = values.get(id(p))
        if value is None:
            return p
        master = Parameter(value, requires_grad=p.requires_grad)
        if p in self.optimizer.state:
            self.optimizer.state[master] = self.optimizer.state.pop(p)
        self.pairs.append((p, master))
        return master

    def scaled(self, loss: Any) -> Any:
        if self.ready:
            raise RuntimeError(
                "amp.scale_loss: the gradients of the last one are unscaled already; call step() and zero_grad(), or give "
                "delay_unscale=True to all but the last backward() of a step"
            )
        return loss * self.factor if self.scaler is None else self.scaler.scale(loss)

    @no_grad()
    def unscale(self) -> None:
        for p, master in self.pairs:
            master.grad = None if p.grad is None else p.grad.float()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        elif self.factor != 1.0:
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad = p.grad / self.factor
        self.ready = True

    def step(self, *args: Any, **kwargs: Any) -> Any:
        plain = type(self.optimizer).step
        if self.inside:
            return plain(self.optimizer, *args, **kwargs)
        if not self.ready:
            raise RuntimeError("amp: step() without gradients taken inside `with amp.scale_loss(loss, optimizer)`")
        self.inside, self.ready = True, False
        try:
            if self.scaler is None:
                return plain(self.optimizer, *args, **kwargs)
            result = self.scaler.step(self.optimizer, *args, **kwargs)
            self.scaler.update()
            return result
        finally:
            self.inside = False

    @no_grad()
    def _copy_back(self) -> None:
        """Before the step runs, so that it is one run."""
        for p, master in self.pairs:
            p.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        type(self.optimizer).zero_grad(self.optimizer, set_to_none)
        for p, _ in self.pairs:
            p.grad = None
        self.ready = False


@contextmanager
def scale_loss(loss: Any, optimizers: Any, *, delay_unscale: bool = False) -> Iterator[Any]:
    """Context that gives the scaled loss; gradients are divided by the scale when it is left.

    Parameters
    ----------
    loss : Tensor
    optimizers : Optimizer or list of Optimizers
        Prepared by :func:`initialize`; of a list, all with one static scale.
    delay_unscale : bool
        True in all but the last ``backward()`` of a step that adds up gradients of several.
    """
    scalings = []
    for optimizer in _listed(optimizers, Optimizer):
        if "_amp" not in vars(optimizer):
            raise RuntimeError("amp.scale_loss: give the optimizer to amp.initialize first")
        scalings.append(optimizer._amp)
    if len(scalings) > 1 and any(s.scaler is not None or s.factor != scalings[0].factor for s in scalings):
        raise RuntimeError("amp.scale_loss: optimizers with dynamic scales have one each; take their losses one by one")
    for s in scalings[1:]:
        s.scaled(loss)
    yield scalings[0].scaled(loss)
    if not delay_unscale:
        for s in scalings:
            s.unscale()


def master_params(optimizer: Optimizer) -> Iterator[Any]:
    """The parameters the optimizer trains: float32 ones, also where the model's are of the low type.  For clipping."""
    for group in optimizer.param_groups:
        yield from group["params"]
