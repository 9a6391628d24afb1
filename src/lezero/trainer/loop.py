"""The trainer: fit, evaluate, predict."""

from __future__ import annotations

import inspect
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lezero.amp import GradScaler, autocast
from lezero.arguments import whole
from lezero.io import load
from lezero.misspelt import SpeltArguments
from lezero.runtime import realize
from lezero.tensor import Tensor, no_grad, tensor
from lezero.trainer import checks
from lezero.trainer import progress as display
from lezero.trainer.callbacks import Callback
from lezero.trainer.checkpoints import Checkpoints, as_checkpoints, random_state, restore_random_state
from lezero.trainer.metrics import Meter, Metric, named


class Trainer(SpeltArguments):
    """Trains a model: the usual loop, with what one always needs around it.

    Parameters
    ----------
    model : nn.Module
    optimizer : optim.Optimizer; only `fit` needs it
    loss_fn : callable(outputs, targets) -> scalar tensor
    metrics : dict of name -> callable(outputs, targets) -> scalar, or a sequence of functions and built-in names
        ("accuracy").  Means over the samples of an epoch are shown and returned.
    scheduler : a learning-rate scheduler, stepped after each epoch or each optimizer step (`schedule_per`); one whose
        ``step`` takes a metric gets the validation loss (or the training loss)
    clip_grad_norm : the largest norm the gradient of all parameters together may have
    accumulate : batches whose gradients are averaged for one optimizer step
    autocast : a 16-bit dtype that the model and the loss run in, see :class:`lezero.amp.autocast`; float32 otherwise
    scaler : a :class:`lezero.amp.GradScaler`, which float16 needs; its state travels in the checkpoints
    callbacks : Callback objects
    progress : show a bar on a terminal, and plain lines elsewhere

    Attributes
    ----------
    epoch, step : whole epochs and optimizer steps done
    history : one dict of means for each epoch
    stop : set by a callback to end the fit, in the middle of an epoch or after it

    Notes
    -----
    A batch is ``(inputs, targets)``, or ``(input, input, …, targets)`` for a model with several inputs.  A dict is taken
    apart by name: ``labels`` (or ``label``, ``targets``, ``target``) are the targets, everything else are keyword arguments
    of the model.  For anything else override :meth:`compute`.

    Raises
    ------
    TypeError, ValueError
        For arguments that are something else, and at the first batch for a loss or a metric that gives no single number.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        *,
        metrics: Mapping[str, Metric] | Sequence[str | Metric] = (),
        scheduler: Any = None,
        schedule_per: str = "epoch",
        clip_grad_norm: float | None = None,
        accumulate: int = 1,
        autocast: Any = None,
        scaler: GradScaler | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        if schedule_per not in ("epoch", "step"):
            raise ValueError(f"Trainer: schedule_per must be 'epoch' or 'step', got {schedule_per!r}")
        checks.model_of(model)
        checks.optimizer_of(model, optimizer, loss_fn)
        checks.loss_of(loss_fn)
        checks.scheduler_of(scheduler, optimizer)
        checks.precision_of(autocast, scaler)
        checks.limits_of(clip_grad_norm, accumulate)
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.metrics = named(metrics)
        checks.metrics_of(self.metrics)
        self.scheduler, self.schedule_per = scheduler, schedule_per
        self.clip_grad_norm, self.accumulate = clip_grad_norm, accumulate
        self.autocast, self.scaler = autocast, scaler
        self.callbacks = checks.callbacks_of(callbacks)
        self.progress = progress
        self.epoch = self.step = 0
        self.history: list[dict[str, float]] = []
        self.stop = False
        self._meter = Meter()
        self._loaders: dict[str, Any] = {}
        self._batches_done = 0  # of the epoch under way
        self._interrupted = False
        self._pending: Mapping[str, Any] | None = None  # a loaded state, until fit has loaders to give it to
        self._checkpoints: Checkpoints | None = None

    # -- fit ---------------------------------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        epochs: int,
        checkpoints: Checkpoints | str | Path | None = None,
        resume: bool | str | Path = False,
    ) -> list[dict[str, float]]:
        """Train until `epochs` epochs are done in all, and return the history.

        Parameters
        ----------
        loader, validation : DataLoader, or any iterable of batches
        checkpoints : a Checkpoints, or just its folder
        resume : continue from ``last.lzm`` of `checkpoints` if there is one (True), or from this file.  The continued run
            has bit for bit the parameters it would have had without the interruption.

        Raises
        ------
        KeyboardInterrupt
            On Ctrl-C: the optimizer step under way is finished first, and with `checkpoints` everything is saved; the message
            says where.  A second Ctrl-C stops at once.
        """
        if self.optimizer is None or self.loss_fn is None:
            raise ValueError("Trainer.fit needs an optimizer and a loss_fn")
        epochs = whole("Trainer.fit: epochs", epochs, 0)
        checks.loader_of("Trainer.fit", loader)
        if validation is not None:
            checks.loader_of("Trainer.fit: validation", validation)
        checkpoints = as_checkpoints(checkpoints)
        self._checkpoints = checkpoints
        self._loaders = {"train": loader, "validation": validation}
        show = display.make(self.progress)
        if resume:
            show.say(self._resume(resume, epochs))
        self._restore_loaders()
        self.stop = False
        self._call("on_fit_begin")
        try:
            with self._finishing_steps(show):
                while self.epoch < epochs and not self.stop:
                    self._fit_epoch(loader, validation, epochs, show)
        finally:
            show.close()
        self._call("on_fit_end")
        return self.history

    def _fit_epoch(self, loader: Any, validation: Any, epochs: int, show: display.Silent) -> None:
        start = time.perf_counter()
        if self._batches_done == 0:
            self._meter = Meter()
            self._call("on_epoch_begin")
        self.model.train()
        total = _length(loader)
        show.begin(f"epoch {self.epoch + 1}/{epochs}", total, self._batches_done)
        batches = iter(loader)
        if not hasattr(loader, "state_dict"):
            next(islice(batches, self._batches_done, self._batches_done), None)
        while group := list(islice(batches, self._group(total))):
            self._optimizer_step(group)
            self._batches_done += len(group)
            show.advance(self._batches_done, self._meter.means() if show.due() else None)
            if self._checkpoints is not None:
                self._checkpoints.after_step(self)
            if self._interrupted:
                self._leave()
            if self.stop:
                if self._checkpoints is not None:
                    self._checkpoints.save(self)
                return
        logs = self._meter.means()
        if not logs:
            raise checks.no_batch(loader)
        if validation is not None:
            logs |= {f"val_{name}": value for name, value in self._measure(validation, None).items()}
        logs["lr"] = float(self.optimizer.param_groups[0]["lr"])
        self.epoch, self._batches_done = self.epoch + 1, 0
        if self.scheduler is not None and self.schedule_per == "epoch":
            self._step_scheduler(logs)
        self.history.append(logs)
        self._call("on_epoch_end", logs)
        if self._checkpoints is not None:
            self._checkpoints.after_epoch(self, logs, final=self.stop or self.epoch >= epochs)
        seconds = time.perf_counter() - start
        show.end(f"epoch {self.epoch}/{epochs}  {display.formatted(logs)}  {seconds:.1f} s")
        if self._interrupted and self.epoch < epochs:
            self._leave()

    def _group(self, total: int | None) -> int:
        """Batches in the next optimizer step."""
        if total is None:
            return self.accumulate
        return max(1, min(self.accumulate, total - self._batches_done))

    def _optimizer_step(self, group: list[Any]) -> None:
        self.optimizer.zero_grad()
        for batch in group:
            loss, values, samples = self._compute(batch)
            loss = loss / len(group) if len(group) > 1 else loss
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            self._meter.add(values, samples)
            del loss, values
        self._update()
        self.step += 1
        if self.scheduler is not None and self.schedule_per == "step":
            self._step_scheduler(None)
        self._call("on_step_end")

    def _update(self) -> None:
        """One step of the optimizer with the gradients that are there."""
        if self.clip_grad_norm is not None:
            from lezero.nn.utils import clip_grad_norm_

            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _step_scheduler(self, logs: Mapping[str, float] | None) -> None:
        takes = inspect.signature(self.scheduler.step).parameters
        if logs is not None and any(name in takes for name in ("metrics", "metric")):
            self.scheduler.step(logs.get("val_loss", logs["loss"]))
        else:
            self.scheduler.step()

    # -- one batch ---------------------------------------------------------------------------------------------

    def compute(self, batch: Any) -> tuple[Any, Any, int]:
        """(outputs, targets, number of samples) for a batch; override it for batches of another form."""
        inputs, named_inputs, targets = split_batch(batch)
        return self.model(*inputs, **named_inputs), targets, _samples((*inputs, *named_inputs.values()))

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else autocast("cpu", dtype=self.autocast)

    def _compute(self, batch: Any) -> tuple[Tensor, dict[str, Any], int]:
        with self._precision():
            outputs, targets, samples = self.compute(batch)
            loss = self._loss(outputs, targets)
        with no_grad():
            values = {"loss": loss.detach(), **self._metrics(outputs, targets)}
        return loss, values, samples

    def _loss(self, outputs: Any, targets: Any) -> Tensor:
        with checks.given_no_targets(targets):
            loss = self.loss_fn(outputs, targets)  # type: ignore[misc]
        checks.loss_value(loss)
        return loss

    def _metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        values = {}
        for name, metric in self.metrics.items():
            with checks.given_no_targets(targets):
                values[name] = metric(outputs, targets)
            checks.scalar(f"Trainer: the metric {name!r}", values[name])
        return values

    # -- evaluate and predict ----------------------------------------------------------------------------------

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Means of the loss and the metrics over a loader, in evaluation mode and without gradients."""
        checks.loader_of("Trainer.evaluate", loader)
        show = display.make(self.progress)
        show.begin("evaluate", _length(loader))
        try:
            return self._measure(loader, show)
        finally:
            show.close()

    def _measure(self, loader: Iterable[Any], show: display.Silent | None) -> dict[str, float]:
        meter = Meter()
        with _evaluating(self.model), no_grad():
            for done, batch in enumerate(loader, 1):
                with self._precision():
                    outputs, targets, samples = self.compute(batch)
                    values = {} if self.loss_fn is None else {"loss": self._loss(outputs, targets)}
                values |= self._metrics(outputs, targets)
                realize(*(v for v in values.values() if isinstance(v, Tensor)))
                meter.add(values, samples)
                if show is not None:
                    show.advance(done, meter.means() if show.due() else None)
        return meter.means()

    def predict(self, loader: Iterable[Any] | Tensor) -> Any:
        """The model's outputs for all batches of a loader (or for one tensor of inputs), in evaluation mode.

        Outputs that are tensors are joined along their first dimension; anything else comes as a list, one for each batch.
        The last member of a batch of two or more (of a dict, the labels) is taken for the targets and left out.
        """
        if not isinstance(loader, Tensor):
            checks.loader_of("Trainer.predict", loader)
        with _evaluating(self.model), no_grad(), self._precision():
            if isinstance(loader, Tensor):
                return self.model(loader).realize()
            outputs = []
            for batch in loader:
                inputs, named_inputs, _ = split_batch(batch)
                outputs.append(self.model(*inputs, **named_inputs))
            if outputs and all(isinstance(o, Tensor) for o in outputs):
                return tensor(np.concatenate([o.numpy() for o in outputs]))
            return outputs

    # -- saving and resuming -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that continuing needs: model, optimizer, scheduler, loaders, random state, counts and history."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "loaders": {k: v.state_dict() if hasattr(v, "state_dict") else None for k, v in self._loaders.items()},
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "random": random_state(),
            "epoch": self.epoch,
            "step": self.step,
            "batches_done": self._batches_done,
            "meter": self._meter.state_dict(),
            "history": [dict(logs) for logs in self.history],
            "callbacks": [c.state_dict() for c in self.callbacks],
            "best": None
            if self._checkpoints is None or self._checkpoints.best is None
            else self._checkpoints.best.value,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; loaders and random state are set when `fit` begins."""
        for callback, saved in zip(self.callbacks, state["callbacks"]):
            callback.load_state_dict(saved)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None and state.get("scaler") is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.epoch, self.step, self._batches_done = state["epoch"], state["step"], state["batches_done"]
        self._meter = Meter()
        self._meter.load_state_dict(state["meter"])
        self.history = [dict(logs) for logs in state["history"]]
        self._pending = state

    def _resume(self, source: bool | str | Path, epochs: int) -> str:
        """Take over what was saved, and say in a line where that leads."""
        if source is True:
            if self._checkpoints is None:
                raise ValueError("Trainer.fit: resume=True needs checkpoints, the folder to resume from")
            if not self._checkpoints.last.exists():
                return f"there is no {self._checkpoints.last} to resume from: a new run"
            source = self._checkpoints.last
        state = load(source)  # type: ignore[arg-type]
        if not isinstance(state, dict) or "batches_done" not in state:
            raise ValueError(f"{source} holds no trainer's state, so there is nothing to resume from")
        self.load_state_dict(state)
        if self.epoch >= epochs:
            return f"{source}: complete, {self.epoch} of {epochs} epochs are done"
        return f"resuming {source} in epoch {self.epoch + 1} of {epochs}, after step {self.step}"

    def _restore_loaders(self) -> None:
        state, self._pending = self._pending, None
        if state is None:
            return
        for name, loader in self._loaders.items():
            saved = state["loaders"].get(name)
            if saved is not None and hasattr(loader, "load_state_dict"):
                loader.load_state_dict(saved)
        if self._checkpoints is not None and self._checkpoints.best is not None:
            self._checkpoints.best.value = state["best"]
        restore_random_state(state["random"])

    # -- interruption ------------------------------------------------------------------------------------------

    @contextmanager
    def _finishing_steps(self, show: display.Silent) -> Iterator[None]:
        """Let the first Ctrl-C finish the optimizer step under way; the second is an ordinary KeyboardInterrupt."""
        self._interrupted = False
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can have signal handlers
            return
        before = signal.getsignal(signal.SIGINT)

        def handler(number: int, frame: Any) -> None:
            self._interrupted = True
            signal.signal(signal.SIGINT, before)
            show.say("stopping after this step (Ctrl-C again: at once) …")

        if before is not signal.default_int_handler:
            yield  # somebody else decides what Ctrl-C means
            return
        signal.signal(signal.SIGINT, handler)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _leave(self) -> None:
        # No class of its own: CPython ends a script with 130, as shells expect after Ctrl-C, for this very class only.
        if self._checkpoints is None:
            raise KeyboardInterrupt(
                f"interrupted after step {self.step}; nothing was saved, as no checkpoints were asked for"
            )
        path = self._checkpoints.save(self)
        raise KeyboardInterrupt(f"interrupted after step {self.step}; saved to {path}, continue with resume=True")

    def _call(self, name: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, *args)


TARGETS = ("labels", "label", "targets", "target")
"""Keys of a dict batch that hold its targets; the first that is there does."""


def split_batch(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """(inputs, inputs by name, targets) of a batch.

    A dict has inputs by name and its targets under one of `TARGETS`.  A batch that is no dict, tuple or list, or one of a
    single member, has no targets.
    """
    if isinstance(batch, Mapping):
        key = next((k for k in TARGETS if k in batch), None)
        return (), {k: v for k, v in batch.items() if k != key}, batch.get(key)
    if not isinstance(batch, (tuple, list)):
        return (batch,), {}, None
    if len(batch) == 1:
        return tuple(batch), {}, None
    return tuple(batch[:-1]), {}, batch[-1]


def _samples(inputs: tuple[Any, ...]) -> int:
    shape: Any = getattr(inputs[0], "shape", ()) if inputs else ()
    return int(shape[0]) if len(shape) else 1


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode for a while."""
    training = getattr(model, "training", True)
    model.eval()
    try:
        yield
    finally:
        model.train(training)
