"""Where and when a trainer saves itself, and the random state that belongs to it."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lezero.io import save
from lezero.runtime.inputs import default_generator
from lezero.trainer.callbacks import Best

if TYPE_CHECKING:
    from lezero.trainer.loop import Trainer


class Checkpoints:
    """Saves ``last.lzm`` every so often and ``best.lzm`` after the best epoch, each atomically.

    Parameters
    ----------
    folder : made if it does not exist
    every_steps : also save after this many optimizer steps, in the middle of an epoch
    every_epochs : save after this many epochs
    keep_best : whether to keep ``best.lzm``, judged by `monitor` and `mode` (see :class:`~lezero.trainer.callbacks.Best`)
    """

    def __init__(
        self,
        folder: str | Path,
        every_steps: int | None = None,
        every_epochs: int = 1,
        keep_best: bool = True,
        monitor: str | None = None,
        mode: str | None = None,
    ) -> None:
        if every_epochs < 1 or (every_steps is not None and every_steps < 1):
            raise ValueError("Checkpoints: every_steps and every_epochs must be 1 or more")
        self.folder = Path(folder)
        self.every_steps, self.every_epochs = every_steps, every_epochs
        self.best = Best(monitor, mode) if keep_best else None

    @property
    def last(self) -> Path:
        """The file a fit is resumed from."""
        return self.folder / "last.lzm"

    def save(self, trainer: Trainer) -> Path:
        """Write the trainer's state to ``last``, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save(trainer.state_dict(), self.last)
        return self.last

    def after_step(self, trainer: Trainer) -> None:
        """Write it where `every_steps` says so."""
        if self.every_steps and trainer.step % self.every_steps == 0:
            self.save(trainer)

    def after_epoch(self, trainer: Trainer, logs: Mapping[str, float], final: bool) -> None:
        """Write it where `every_epochs` says so, after the `final` epoch, and where the epoch was the best so far, which has a file of its own."""
        best = self.best is not None and self.best.improved(logs)
        if best or final or trainer.epoch % self.every_epochs == 0:
            self.save(trainer)
        if best:
            save(trainer.state_dict(), self.folder / "best.lzm")


def as_checkpoints(given: Any) -> Checkpoints | None:
    """Checkpoints, or their folder as a path, or None for none."""
    if given is None or isinstance(given, Checkpoints):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"Trainer.fit: checkpoints is a Checkpoints or the folder to save in, got {given!r}")
    return Checkpoints(Path(given))


def random_state() -> dict[str, Any]:
    """The state of LeZero's, NumPy's and Python's default generators."""
    numpy_state = np.random.get_state(legacy=True)
    return {"lezero": default_generator.get_state(), "numpy": numpy_state, "python": random.getstate()}


def restore_random_state(state: Mapping[str, Any]) -> None:
    default_generator.set_state(state["lezero"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
