"""``GradScaler``: the loss times a scale, so that gradients in float16 do not vanish, and a scale that follows overflows.

Whether a gradient overflowed is a value of the recording like any other.  The updates of the optimizers in ``lezero.optim``
take it as an operand and leave everything as it is where it holds, so a step is one run, skipped or not, and nothing is read
in between; the next scale is computed with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lezero.amp.autocast import check_device
from lezero.amp.overflow import Overflow, Source, first_overflow, found_in
from lezero.graph.dtype import DType, float16, float32, float64, int32
from lezero.nn.parameter import constant_tensor
from lezero.optim.optimizer import Optimizer
from lezero.runtime import scalar_input
from lezero.runtime.recording import STATE
from lezero.runtime.writes import assign
from lezero.switched import switched
from lezero.tensor import Tensor, no_grad, where

LOSSES_AT_START = 8
"""So many steps in a row, from the first on, may have a loss that is not finite: no scale helps against that."""
SKIPS_IN_A_ROW = 100
"""So many steps in a row may be skipped; looked at once in so many calls of ``update``."""


class _Stage(Enum):
    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class _Checks:
    """What is known of one optimizer's gradients.

    stage : how far it is since the last ``update``
    skip : 0-d bool, whether a gradient is not finite; there from ``unscale_`` to ``update``
    culprit : 0-d int32, the parameter whose gradient overflowed first when one did last; -1 before
    sources : where each parameter's gradient was recorded
    """

    def __init__(self) -> None:
        self.stage = _Stage.READY
        self.skip: Tensor | None = None
        self.culprit = _number(-1, int32)
        self.sources: list[Source] = []


class GradScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018), with PyTorch's interface, defaults and arithmetic.

    ::

        scaler = lz.amp.GradScaler()
        for x, y in loader:
            optimizer.zero_grad()
            with lz.amp.autocast("cpu", dtype=lz.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)      # leaves everything as it is if a gradient is infinite or NaN
            scaler.update()             # then halves the scale; after 2000 steps without, doubles it

    Parameters
    ----------
    device : str
        What is trained on, such as ``"cpu"``.
    init_scale, growth_factor, backoff_factor : float
        The first scale, and what it is multiplied by after `growth_interval` steps in a row without overflow, and after an
        overflow.
    growth_interval : int
    enabled : bool
        False makes ``scale``, ``unscale_`` and ``update`` do nothing, and ``step`` the optimizer's own.
    min_scale : float
        The scale is not backed off below this (nor raised to it).  PyTorch has none, and its scale can reach 0.
    hysteresis : int
        How many overflows it takes before the scale is backed off; counted anew when the scale grows (as in Megatron-LM).

    Notes
    -----
    In a function captured by ``lz.jit``, ``scale``, ``step`` and ``update`` belong together inside it.

    A skipped step leaves parameters, moments and the step count of the optimizers in ``lezero.optim`` as they were; their
    step hooks run all the same.  The ``step`` of any other optimizer is not called when a gradient overflowed, which takes a
    look at a value, and a run, before each of its steps.
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = 2.0**-14,
        hysteresis: int = 1,
    ):
        check_device("GradScaler", device)
        self._enabled = bool(enabled)
        self._init_scale = _positive("init_scale", init_scale)
        self._init_growth_tracker = 0
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.set_growth_interval(growth_interval)
        self._min_scale = _positive("min_scale", min_scale)
        self._hysteresis = _count("hysteresis", hysteresis)
        self._scale: Tensor | None = None  # made when first needed
        self._growth_tracker: Tensor | None = None
        self._hysteresis_tracker: Tensor | None = None
        self._optimizers: WeakKeyDictionary[Optimizer, _Checks] = WeakKeyDictionary()
        self._bad_loss: Tensor | None = None  # since the last update
        self._updates = 0
        self._captured: Any = None
        self._started = False  # a loss was finite
        self._bad_losses: Tensor | None = None  # in a row from the first on; -1 once one was finite
        self._skips: Tensor | None = None  # in a row

    # -- one step ----------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """`outputs` times the scale: a tensor, or an iterable of tensors and iterables (a list or tuple stays one)."""
        if not self._enabled:
            return outputs
        self._remember()
        if self._scale is None:
            self._begin()
        self._look_at_losses()
        return self._scaled(outputs)

    def _scaled(self, outputs: Any) -> Any:
        if isinstance(outputs, Tensor):
            if not outputs.dtype.is_floating_point:
                raise TypeError(f"GradScaler.scale: a floating tensor is needed, got {outputs.dtype.name}")
            self._note_loss(outputs)
            return outputs * self._scale
        if isinstance(outputs, Mapping) or not isinstance(outputs, Iterable):
            raise TypeError(
                f"GradScaler.scale: a tensor or an iterable of tensors is needed, got {type(outputs).__name__}"
            )
        scaled = map(self._scaled, outputs)
        if not isinstance(outputs, (list, tuple)):
            return scaled
        return type(outputs)(*scaled) if hasattr(outputs, "_fields") else type(outputs)(scaled)

    @no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, and note whether one is not finite.

        ``step`` does it by itself; call it before, once, to clip or look at gradients.

        Raises
        ------
        RuntimeError
            A second time before ``update``, after ``step``, or when nothing was ever scaled.
        ValueError
            When a gradient is float16: a step with what the scale was to save would lose it again.
        """
        if not self._enabled:
            return
        checks = self._checks(optimizer)
        if checks.stage is _Stage.UNSCALED:
            raise RuntimeError(
                "GradScaler: unscale_() has already been called on this optimizer since the last update()"
            )
        if checks.stage is _Stage.STEPPED:
            raise RuntimeError("GradScaler: unscale_() is being called after step()")
        if self._scale is None:
            raise RuntimeError(
                "GradScaler: nothing has been scaled yet; call backward() on scaler.scale(loss) before unscale_() or step()"
            )
        params = [p for group in optimizer.param_groups for p in group["params"]]
        graded = [(k, p, grad) for k, p in enumerate(params) if (grad := p.grad) is not None]
        for k, _, grad in graded:
            if grad.dtype is float16:
                raise ValueError(
                    f"GradScaler: the gradient of parameter {k} is float16; parameters stay float32 (autocast casts them "
                    'where they are used, and amp.initialize(opt_level="O2") keeps float32 copies)'
                )
        if graded:
            with _as_rule():
                self._unscale(checks, graded)
        checks.stage = _Stage.UNSCALED

    def _unscale(self, checks: _Checks, graded: list[tuple[int, Tensor, Tensor]]) -> None:
        assert self._scale is not None
        checks.sources = [Source(*given) for given in graded]
        first = first_overflow(checks.sources)
        inverse = self._scale.double().reciprocal().float()
        for _, _, grad in graded:
            assign(grad, grad * inverse)
        checks.skip = first >= 0
        assign(checks.culprit, where(checks.skip, first, checks.culprit).to(int32))
        self._count_losses()

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step(*args, **kwargs)``, which changes nothing if a gradient is infinite or NaN.

        Gradients are divided by the scale first, unless ``unscale_`` has done that.

        Raises
        ------
        RuntimeError
            A second time before ``update``; with a closure; when no parameter has a gradient; when nothing was ever scaled.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError("GradScaler: step() takes no closure, since its loss would not be scaled")
        checks = self._checks(optimizer)
        if checks.stage is _Stage.STEPPED:
            raise RuntimeError("GradScaler: step() has already been called on this optimizer since the last update()")
        if checks.stage is _Stage.READY:
            self.unscale_(optimizer)
        if checks.skip is None:
            raise RuntimeError(
                "GradScaler: no parameter of this optimizer has a gradient: call backward() on scaler.scale(loss) first"
            )
        checks.stage = _Stage.STEPPED
        if type(optimizer)._replays:
            with switched(STATE, "skip_update", checks.skip):
                return optimizer.step(*args, **kwargs)
        return self._step_if_finite(optimizer, checks.skip, args, kwargs)

    def _step_if_finite(self, optimizer: Optimizer, skip: Tensor, args: tuple, kwargs: dict) -> Any:
        if STATE.capture is not None:
            STATE.capture.refuse(
                f"GradScaler.step looks at whether to call {type(optimizer).__name__}.step, which it does for optimizers that "
                "are not in lezero.optim"
            )
        return None if bool(skip) else optimizer.step(*args, **kwargs)

    @no_grad()
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adjust the scale by what ``step`` found, or set it to `new_scale`; the last call of each training step.

        Raises
        ------
        RuntimeError
            When no gradient was looked at since the last call.
        FloatingPointError
            When no step was taken for a long time, and a smaller scale does not help.
        """
        if not self._enabled:
            return
        if self._scale is None:
            raise RuntimeError("GradScaler: update() before anything was scaled")
        if self._updates % SKIPS_IN_A_ROW == SKIPS_IN_A_ROW - 1:
            self._look_at_skips()
        looked = [c for c in self._optimizers.values() if c.skip is not None]
        if new_scale is not None:
            self._set_scale(new_scale)
        elif not looked:
            raise RuntimeError(
                "GradScaler: no gradients were looked at since the last update(); call step() or unscale_() first"
                + (" (in a captured function, together with update())" if self._updates else "")
            )
        else:
            with _as_rule():
                self._adjust([c.skip for c in looked])
        for checks in self._optimizers.values():
            checks.stage, checks.skip = _Stage.READY, None
        self._bad_loss = None
        self._updates += 1

    def _set_scale(self, new_scale: float | Tensor) -> None:
        assert self._scale is not None
        if not isinstance(new_scale, Tensor):
            assign(self._scale, _number(_positive("new_scale", new_scale), float32))
            return
        if new_scale.numel() != 1 or new_scale.requires_grad or not new_scale.dtype.is_floating_point:
            raise ValueError(
                "GradScaler.update: new_scale is a number, or a floating tensor of one element without gradient"
            )
        assign(self._scale, new_scale.reshape(()).float())

    def _adjust(self, skips: list[Any]) -> None:
        """The scale after a step; each `skips` is a 0-d bool."""
        scale, tracker, overflows, in_a_row = self._scale, self._growth_tracker, self._hysteresis_tracker, self._skips
        assert scale is not None and tracker is not None and overflows is not None and in_a_row is not None
        skip = skips[0]
        for other in skips[1:]:
            skip = skip | other
        wide = scale.double()
        grown = (wide * self._input("_growth_factor")).float()
        floor = wide.minimum(self._input("_min_scale"))
        shrunk = (wide * self._input("_backoff_factor")).maximum(floor).float()
        grows = (tracker + 1 >= self._input("_growth_interval", int32)) & skip.logical_not()
        patience = self._input("_hysteresis", int32)
        left = where(grows, patience, where(skip, overflows - 1, overflows).maximum(0))
        assign(scale, where(skip & (left <= 0), shrunk, where(grows & grown.isfinite(), grown, scale)))
        assign(tracker, where(skip | grows, 0, tracker + 1).to(int32))
        assign(overflows, left.to(int32))
        assign(in_a_row, where(skip, in_a_row + 1, 0).to(int32))

    def _input(self, name: str, dtype: DType = float64) -> Tensor:
        """A setting as a number that a captured step reads at every call."""
        return scalar_input(lambda: getattr(self, name), dtype)

    # -- what cannot get better ----------------------------------------------------------------------------------

    def _note_loss(self, outputs: Tensor) -> None:
        with no_grad(), _as_rule():
            bad = outputs.isfinite().all().logical_not()
            self._bad_loss = bad if self._bad_loss is None else self._bad_loss | bad

    def _count_losses(self) -> None:
        """In the recording of the step, so that the number is there when the next loss is scaled."""
        if self._bad_loss is None or self._bad_losses is None:
            return
        count = self._bad_losses
        assign(count, where(self._bad_loss & (count >= 0), count + 1, -1).to(int32))
        self._bad_loss = None

    def _look_at_losses(self) -> None:
        """Until a first loss was finite: the count of the last step, which has run."""
        if self._started or STATE.capture is not None:
            return
        count = found_in(self._bad_losses)
        if count is None:
            return
        self._started = count < 0
        if count == 1 and self._updates == 1:
            warnings.warn(
                "GradScaler: the first loss was infinite or NaN before it was scaled; the scale will be lowered, which does "
                "not help against that",
                RuntimeWarning,
                stacklevel=3,
            )
        if count >= LOSSES_AT_START:
            raise FloatingPointError(
                f"GradScaler: the loss was infinite or NaN in each of the first {count} steps, before it was scaled: no scale "
                "helps against that. lz.debug.check_numerics() finds the operation it comes from"
            )

    def _look_at_skips(self) -> None:
        """How many there were before this step, which that has computed."""
        skips = found_in(self._skips) if STATE.capture is None else None
        if skips is not None and skips >= SKIPS_IN_A_ROW - 1:
            which = "; ".join(map(str, self.overflows()))
            raise FloatingPointError(
                f"GradScaler: the last {skips} steps were all skipped, and the scale is down to {self.get_scale():g}: gradients "
                f"are not finite whatever it is. {which}"
            )

    def overflows(self, model: Any = None) -> list[Overflow]:
        """For each optimizer whose gradients have overflowed: which gradient did first, last time, and what computed it.

        Reading it runs what is pending.

        Parameters
        ----------
        model : Module, optional
            Gives parameters their names, which otherwise are those the optimizer was given, or their numbers.
        """
        names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        found = []
        for optimizer, checks in self._optimizers.items():
            number = int(checks.culprit)
            source = next((s for s in checks.sources if s.number == number), None)
            if source is not None:
                found.append(source.overflow(optimizer, names))
        return found

    # -- state -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._scale = _number(self._init_scale, float32)
        self._growth_tracker = _number(self._init_growth_tracker, int32)
        self._hysteresis_tracker = _number(self._hysteresis, int32)
        self._bad_losses, self._skips = _number(0, int32), _number(0, int32)

    def _remember(self) -> None:
        """Note how far everything is when recording without running begins, to put it back if that comes to nothing."""
        capture = STATE.capture
        if capture is None or self._captured is capture:
            return
        self._captured = capture
        stages = {id(c): (c.stage, c.skip) for c in self._optimizers.values()}
        before = self._bad_loss, self._updates

        def put_back() -> None:
            for checks in self._optimizers.values():
                checks.stage, checks.skip = stages.get(id(checks), (_Stage.READY, None))
            self._bad_loss, self._updates = before

        capture.others.append(put_back)

    def _checks(self, optimizer: Optimizer) -> _Checks:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"GradScaler: an optimizer is needed, got {type(optimizer).__name__}")
        self._remember()
        found = self._optimizers.get(optimizer)
        if found is None:
            found = self._optimizers[optimizer] = _Checks()
        return found

    def get_scale(self) -> float:
        """The scale; reading it runs what is pending.  1.0 where scaling is not enabled."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else float(self._scale)

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after `growth_interval` steps without an overflow."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor, more than 1."""
        if not _positive("growth_factor", new_factor) > 1.0:
            raise ValueError(f"GradScaler: growth_factor must be more than 1, got {new_factor}")
        self._growth_factor = float(new_factor)

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor, between 0 and 1."""
        if not _positive("backoff_factor", new_factor) < 1.0:
            raise ValueError(f"GradScaler: backoff_factor must be less than 1, got {new_factor}")
        self._backoff_factor = float(new_factor)

    def get_growth_interval(self) -> int:
        """How many steps in a row without an overflow make the scale grow."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval, 1 or more steps."""
        self._growth_interval = _count("growth_interval", new_interval)

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """``scale``, ``growth_factor``, ``backoff_factor``, ``growth_interval`` and ``_growth_tracker``, as PyTorch's; with a
        hysteresis also ``_hysteresis_tracker``.  Empty where scaling is not enabled."""
        if not self._enabled:
            return {}
        tracker = self._init_growth_tracker if self._growth_tracker is None else int(self._growth_tracker)
        state = {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": tracker,
        }
        if self._hysteresis > 1:
            left = self._hysteresis if self._hysteresis_tracker is None else int(self._hysteresis_tracker)
            state["_hysteresis_tracker"] = left
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, PyTorch's too; does nothing where scaling is not enabled.

        Raises
        ------
        RuntimeError
            For the empty state of a scaler that was not enabled.
        ValueError
            For what is no scaler's state; nothing is changed then.
        """
        if not self._enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "GradScaler.load_state_dict: the state is empty, as that of a scaler which was not enabled when it was saved"
            )
        missing = [k for k in _STATE if k not in state_dict]
        if missing:
            raise ValueError(f"GradScaler.load_state_dict: not a scaler's state, {', '.join(missing)} missing")
        loaded = GradScaler(
            init_scale=state_dict["scale"], **{k: state_dict[k] for k in _STATE[1:4]}, hysteresis=self._hysteresis
        )
        tracker, left = state_dict["_growth_tracker"], state_dict.get("_hysteresis_tracker", self._hysteresis)
        self._init_scale, self._init_growth_tracker = loaded._init_scale, int(tracker)
        self._growth_factor, self._backoff_factor = loaded._growth_factor, loaded._backoff_factor
        self._growth_interval = loaded._growth_interval
        if self._scale is None:
            self._begin()
        assert self._scale is not None and self._growth_tracker is not None and self._hysteresis_tracker is not None
        with no_grad():  # in the tensors that are there, which captured steps hold
            assign(self._scale, _number(self._init_scale, float32))
            assign(self._growth_tracker, _number(self._init_growth_tracker, int32))
            assign(self._hysteresis_tracker, _number(int(left), int32))

    def __repr__(self) -> str:
        if not self._enabled:
            return "GradScaler(enabled=False)"
        return f"GradScaler(growth_factor={self._growth_factor}, backoff_factor={self._backoff_factor}, growth_interval={self._growth_interval})"


_STATE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def _as_rule() -> switched:
    """Context: numbers are part of what is recorded, and not inputs of its runs (there would be two for each parameter);
    precision is not chosen by autocast."""
    return switched(STATE, "in_rule", True)


def _number(value: float, dtype: DType) -> Tensor:
    """A 0-d tensor that has its value already."""
    return constant_tensor(np.array(value, dtype.numpy))


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < float("inf"):
        raise ValueError(f"GradScaler: {name} is a positive finite number, got {value!r}")
    return float(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"GradScaler: {name} is an int, 1 or more, got {value!r}")
    return int(value)
