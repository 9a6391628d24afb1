"""How the command line trains a classifier: AdamW, one cycle of the learning rate, smoothed labels, images bent at random."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import click
import numpy as np

import lezero as lz
from lezero.cli.networks import Classifier
from lezero.data import DataLoader, Dataset
from lezero.data.datasets import Images
from lezero.data.randomness import batch_generator
from lezero.nn import functional as F
from lezero.trainer import Callback, Trainer


def fit(
    name: str,
    training: Images,
    held_out: Images,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
    workers: int = 0,
    progress: bool = True,
    checkpoints: Any = None,
    resume: bool = False,
) -> tuple[Classifier, list[dict[str, float]], float]:
    """(the trained classifier, the history, seconds)."""
    lz.manual_seed(seed)
    classifier = Classifier(name, max(training.images.shape[1:]), list(training.classes))
    train_set = Prepared(training, classifier, shift=max(1, classifier.size // 14))
    loader = DataLoader(train_set, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    validation = DataLoader(Prepared(held_out, classifier), 256)
    optimizer = lz.optim.AdamW(classifier.model.parameters(), lr=lr, weight_decay=0.01)
    scheduler = lz.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    trainer = Trainer(
        classifier.model, optimizer, partial(F.cross_entropy, label_smoothing=0.1),
        metrics=["accuracy"], scheduler=scheduler, schedule_per="step", progress=progress,
        callbacks=[FiniteLoss(), SameOptions(model=name, epochs=epochs, batch_size=batch_size, lr=lr, images=len(training))],
    )  # fmt: skip
    start = time.perf_counter()
    history = trainer.fit(loader, validation, epochs=epochs, checkpoints=checkpoints, resume=resume)
    return classifier, history, time.perf_counter() - start


class FiniteLoss(Callback):
    """Ends a training that cannot recover, before anything of it is saved."""

    def on_epoch_end(self, trainer: Trainer, logs: Any) -> None:
        if not math.isfinite(logs["loss"]):
            raise click.ClickException(
                f"the loss is {logs['loss']} after epoch {trainer.epoch}: a smaller learning rate usually helps (train --lr), and "
                "lz.debug.check_numerics() finds the operation where it began. Nothing was saved of this epoch"
            )


class SameOptions(Callback):
    """Refuses to continue a training that was begun with other options: its schedule would be another one."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def state_dict(self) -> dict[str, Any]:
        return self.options

    def load_state_dict(self, state: Any) -> None:
        for name, now in self.options.items():
            if state.get(name) != now:
                raise ValueError(f"--resume needs the options as before: {name} was {state.get(name)}, not {now}")


class Prepared(Dataset):
    """Images as a classifier wants them, each bent by chance and shifted by up to `shift` pixels, unless that is 0."""

    def __init__(self, images: Images, classifier: Classifier, shift: int = 0) -> None:
        self.images, self.labels = classifier.prepare(images.images), images.labels
        self.shift = shift

    def __len__(self) -> int:
        return len(self.labels)

    def gather(self, indices: Any) -> tuple[np.ndarray, np.ndarray]:
        batch = self.images[indices]
        return bent(batch, 0.15, self.shift) if self.shift else batch, self.labels[indices]


def bent(images: np.ndarray, amount: float, shift: float) -> np.ndarray:
    """Images (count, 1, height, width), each turned, stretched, sheared and shifted at random, on black.

    amount : of turning (radians), stretching (of the extent) and shearing, at most
    shift : pixels, at most
    """
    count, _, height, width = images.shape
    random = batch_generator()
    turn, across, down, shear = random.uniform(-amount, amount, (4, count, 1, 1)).astype(np.float32)
    right, below = random.uniform(-shift, shift, (2, count, 1, 1)).astype(np.float32)
    y = np.arange(height, dtype=np.float32)[:, None] - (height - 1) / 2
    x = np.arange(width, dtype=np.float32) - (width - 1) / 2
    u = (1 + across) * (np.cos(turn) * x - np.sin(turn) * y) + shear * y + right + (width - 1) / 2
    v = (1 + down) * (np.sin(turn) * x + np.cos(turn) * y) + below + (height - 1) / 2
    framed = np.pad(images[:, 0], [(0, 0), (1, 1), (1, 1)])
    u, v = np.clip(u + 1, 0, width + 0.999), np.clip(v + 1, 0, height + 0.999)
    left, top = np.floor(u), np.floor(v)
    first = np.arange(count)[:, None, None] * framed[0].size
    place = first + top.astype(np.intp) * (width + 2) + left.astype(np.intp)
    corners = [framed.ravel()[place + step] for step in (0, 1, width + 2, width + 3)]
    u, v = u - left, v - top
    return ((1 - v) * ((1 - u) * corners[0] + u * corners[1]) + v * ((1 - u) * corners[2] + u * corners[3]))[:, None]
