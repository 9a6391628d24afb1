"""``lezero train`` and ``lezero eval``."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from lezero.cli.data import check_output, open_images, user_errors


@click.command()
@click.option(
    "--model", "name", default="residual", show_default=True, help="residual, or a classifier of lezero.models."
)
@click.option("--data", default="digits", show_default=True, help="digits, or a folder with MNIST's four IDX files.")
@click.option("--epochs", default=10, show_default=True, type=click.IntRange(1), help="Passes over the images.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Images in a step.")
@click.option(
    "--lr", default=0.005, show_default=True, type=click.FloatRange(0, min_open=True), help="Highest learning rate."
)
@click.option("--out", default="model.lzm", show_default=True, type=click.Path(path_type=Path), help="File to save to.")
@click.option("--resume", is_flag=True, help="Continue an interrupted training with the same --out.")
@click.option("--workers", default=0, show_default=True, type=click.IntRange(0), help="Processes that load images.")
@click.option("--seed", default=0, show_default=True, help="Makes the run repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
def train(
    name: str,
    data: str,
    epochs: int,
    batch_size: int,
    lr: float,
    out: Path,
    resume: bool,
    workers: int,
    seed: int,
    as_json: bool,
) -> None:
    """Train a model and save it as an .lzm file.

    Progress is saved after every epoch, and on Ctrl-C, to a folder beside --out; --resume continues from there exactly.
    """
    from lezero.cli.networks import NETWORKS
    from lezero.cli.others import OTHERS, unknown_network
    from lezero.cli.recipe import fit
    from lezero.trainer import Checkpoints

    if name not in NETWORKS:
        raise click.UsageError(
            f"{name} does not classify images, which is what train teaches (lezero explain {name} shows it); networks that do "
            f"are {', '.join(NETWORKS)}"
            if name in OTHERS
            else unknown_network(name)
        )
    if not math.isfinite(lr):
        raise click.UsageError(f"--lr: a finite number is needed, got {lr}")
    check_output("--out", out)
    checkpoints = Checkpoints(out.with_name(out.stem + "-checkpoints"), keep_best=False)
    training, held_out = open_images(data, True), open_images(data, False)
    if resume and not checkpoints.last.exists():
        raise click.UsageError(f"--resume: there is no {checkpoints.last} to continue from")
    try:
        with user_errors() if resume else nullcontext():
            classifier, history, seconds = fit(
                name, training, held_out, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed, workers=workers,
                progress=not as_json, checkpoints=checkpoints, resume=resume,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        said = str(error).partition(";")[0]
        if not said:  # stopped at once, or before the first step: nothing was saved by this
            raise
        raise KeyboardInterrupt(
            f"{said}; saved to {checkpoints.last}, continue with: lezero train --resume and the options as before"
        ) from None
    classifier.save(out, data=data, epochs=epochs, accuracy=history[-1]["val_accuracy"])
    result: dict[str, Any] = {"out": str(out), "epochs": len(history), "seconds": seconds, **history[-1]}
    _report(as_json, result, f"saved {out}: {100 * result['val_accuracy']:.2f} % of the held-out images are right")


@click.command("eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", default="digits", show_default=True, help="digits, or a folder with MNIST's four IDX files.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(file: Path, data: str, as_json: bool) -> None:
    """Measure a saved model on held-out images."""
    from lezero.cli.networks import Classifier

    with user_errors():
        classifier = Classifier.open(file)
    images = open_images(data, False)
    right = int((classifier.probabilities(images.images).argmax(1) == images.labels).sum())
    result = {"file": str(file), "images": len(images), "correct": right, "accuracy": right / len(images)}
    _report(as_json, result, f"{right} of {len(images)} images are right: {100 * right / len(images):.2f} %")


def _report(as_json: bool, result: dict[str, Any], line: str) -> None:
    click.echo(json.dumps(result) if as_json else line)
