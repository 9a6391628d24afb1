"""``lezero quickstart``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from lezero.cli.data import check_output, open_images


@click.command()
@click.option("--data", default="digits", show_default=True, help="digits, or a folder with MNIST's four IDX files.")
@click.option(
    "--output", default="digits.lzm", show_default=True, type=click.Path(path_type=Path), help="File to save to."
)
@click.option("--epochs", type=click.IntRange(1), help="Passes over the images  [default: 45; 1 with --data DIR]")
@click.option("--seed", default=0, show_default=True, help="Makes the run repeatable.")
def quickstart(data: str, output: Path, epochs: int | None, seed: int) -> None:
    """Train on handwritten digits, save, open again and classify.

    Takes well under a minute on two cores; everything it does is also a command or a few lines of Python.
    """
    check_output("--output", output)
    training, held_out = open_images(data, True), open_images(data, False)
    from lezero.cli.recipe import fit

    height, width = training.images.shape[1:]
    click.echo(
        f"A small residual network learns {len(training):,} images of {height}x{width} pixels; "
        f"{len(held_out):,} are held out."
    )
    classifier, history, seconds = fit(
        "residual", training, held_out,
        epochs=epochs or (45 if data == "digits" else 1), batch_size=64, lr=0.005, seed=seed,
    )  # fmt: skip
    reached = history[-1]["val_accuracy"]
    click.echo(f"\nAfter {seconds:.0f} s, {100 * reached:.2f} % of the held-out images are classified correctly.")
    classifier.save(output, data=data, accuracy=reached)
    click.echo(f"Saved {output} ({output.stat().st_size / 1024:.0f} KiB). A new process opens it and classifies:\n")
    _classify_again(output, data, 8 if width <= 16 else 4)
    _what_restructuring_did(classifier)
    _what_next(output, data)


def _classify_again(output: Path, data: str, count: int) -> None:
    arguments = ["predict", str(output), "--data", data, "--count", str(count), "--show"]
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-m", "lezero.cli", *arguments], check=False)
    if done.returncode:
        raise click.ClickException(f"the new process could not use {output} (exit code {done.returncode})")


def _what_restructuring_did(classifier: object) -> None:
    from lezero.cli.explain import step_summary

    click.echo("\nWhat recording and restructuring made of one training step:\n")
    click.echo(step_summary(classifier))


def _what_next(output: Path, data: str) -> None:
    same = "" if data == "digits" else f" --data {data}"
    rows = [
        (f"lezero eval {output}{same}", "measure it again"),
        (f"lezero explain {output}", "see what every pass made of its graph, and its kernels"),
        (f"lezero train --model lenet5{same} --out lenet.lzm", "train another network"),
        ("lezero train --help", "your own images, epochs, learning rate"),
        ("docs/training-loop.md", "the same loop, written by hand"),
    ]
    wide = max(len(command) for command, _ in rows)
    click.echo("\nWhat to try next:\n" + "\n".join(f"  {command:<{wide}}  {what}" for command, what in rows))
