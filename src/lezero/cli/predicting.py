"""``lezero predict``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from lezero.cli.data import open_images, read_images, say_if_resized, user_errors


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, type=click.Path(path_type=Path))
@click.option("--data", help="Classify held-out images of digits, or of a folder of IDX files, instead of files.")
@click.option("--count", type=click.IntRange(1), help="Only so many images.")
@click.option("--show", is_flag=True, help="Draw the images in the terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict(
    file: Path, images: tuple[Path, ...], data: str | None, count: int | None, show: bool, as_json: bool
) -> None:
    """Classify images with the saved model FILE.

    IMAGES are IDX files (gzipped or not), .npy arrays (count, height, width), or pictures if Pillow is installed; bright
    strokes on a dark ground, with values from 0 to 255. Values from 0 to 1, colours and other sizes are converted, which is
    said on standard error.
    """
    if bool(images) == bool(data):
        raise click.UsageError("name either files with images or --data")
    from lezero.cli.networks import Classifier

    with user_errors():
        classifier = Classifier.open(file)
    sources = _from_data(data) if data else [(path.name, read_images(path, _say), None) for path in images]
    results: list[dict[str, Any]] = []
    pictures: list[np.ndarray] = []
    for source, pixels, labels in sources:
        pixels = pixels[:count]
        say_if_resized(pixels, classifier.size, source, _say)
        chances = classifier.probabilities(pixels)
        for i, row in enumerate(chances):
            best = int(row.argmax())
            entry = {"image": f"{source}[{i}]", "class": classifier.classes[best], "probability": float(row[best])}
            if labels is not None:
                entry["truth"] = classifier.classes[int(labels[i])]
            results.append(entry)
        pictures.extend(pixels)
    if as_json:
        click.echo(json.dumps(results))
    elif show:
        from lezero.cli.pictures import side_by_side

        click.echo(side_by_side(pictures, [_caption(r) for r in results]), color=True)
    else:
        for r in results:
            click.echo(f"{r['image']}  {_caption(r)}")


def _say(text: str) -> None:
    click.echo(text, err=True)  # standard output is the answer's


def _from_data(data: str) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    held_out = open_images(data, False)
    return [("held-out", held_out.images, held_out.labels)]


def _caption(result: dict[str, Any]) -> str:
    wrong = f", but is {result['truth']}" if result.get("truth", result["class"]) != result["class"] else ""
    return f"{result['class']} ({100 * result['probability']:.0f} %){wrong}"
