"""What can be hooked into a trainer's loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lezero.trainer.loop import Trainer


class Callback:
    """Override what is needed.  ``trainer.stop = True`` ends the fit after the current step or epoch.

    A callback with a memory also defines ``state_dict`` and ``load_state_dict``; they travel in the checkpoints.
    """

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Before the first step of a fit."""

    def on_epoch_begin(self, trainer: Trainer) -> None:
        """Before the first step of an epoch."""

    def on_step_end(self, trainer: Trainer) -> None:
        """After each step of the optimizer."""

    def on_epoch_end(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """After an epoch and its validation; `logs` are its means by name."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """After the last epoch of a fit, and after a fit that was stopped."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed fit needs to know, in plain types and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""


class Best:
    """The best value of one of an epoch's logs so far.

    Parameters
    ----------
    monitor : a name in the logs; by default ``val_loss``, or ``loss`` without validation
    mode : {"min", "max"}; by default "max" for names with accuracy in them
    min_delta : how much better counts as better
    """

    def __init__(self, monitor: str | None = None, mode: str | None = None, min_delta: float = 0.0) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        self.monitor, self.mode, self.min_delta = monitor, mode, min_delta
        self.value: float | None = None

    def improved(self, logs: Mapping[str, float]) -> bool:
        """Whether `logs` are the best so far; remembers them if they are."""
        name = self.monitor or ("val_loss" if "val_loss" in logs else "loss")
        if name not in logs:
            raise KeyError(f"monitor={name!r}: this epoch's logs have only {', '.join(logs)}")
        sign = -1 if (self.mode or ("max" if "accuracy" in name else "min")) == "max" else 1
        new = sign * logs[name]
        if math.isnan(new) or (self.value is not None and new >= sign * self.value - self.min_delta):
            return False
        self.value = logs[name]
        return True


class EarlyStopping(Callback):
    """Stop when a value has not become better for `patience` epochs (see :class:`Best` for the other parameters)."""

    def __init__(
        self, monitor: str | None = None, patience: int = 5, mode: str | None = None, min_delta: float = 0.0
    ) -> None:
        if patience < 1:
            raise ValueError(f"EarlyStopping: patience must be 1 or more epochs, got {patience}")
        self.best, self.patience, self.waited = Best(monitor, mode, min_delta), patience, 0

    def on_epoch_end(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        self.waited = 0 if self.best.improved(logs) else self.waited + 1
        if self.waited >= self.patience:
            trainer.stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.value, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best.value, self.waited = state["best"], state["waited"]
