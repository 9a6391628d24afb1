"""``lezero explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lezero.cli.data import check_output, user_errors


@click.command()
@click.argument("model")
@click.option(
    "--batch", default=64, show_default=True, type=click.IntRange(1), help="Images or sequences in the example."
)
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224",
    help="Extents of an input of an .onnx file; those left open are --batch, the first, and 128.",
)  # fmt: skip
@click.option("--train", "training", is_flag=True, help="Explain a whole training step instead of the forward pass.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "page", metavar="FILE", help="Write a page for the browser instead of printing text.")
def explain(model: str, batch: int, shapes: tuple[str, ...], training: bool, as_json: bool, page: str | None) -> None:
    """Show what recording and restructuring make of a model.

    MODEL is an .lzm or .onnx file, or the name of a network: residual, or one of lezero.models, such as resnet50 or bert_base.
    """
    import lezero as lz
    from lezero.runtime.figures import byte_count

    if page is not None:
        check_output("--html", Path(page))
    example = _example_of(model, batch, shapes)
    if training:
        if example.loss is None:
            other = "" if _is_onnx(model) else f"; {model}_for_masked_lm has"
            raise click.UsageError(f"--train: {model} has no loss of its own{other}")
        explanation = lz.explain(_step(example), *example.inputs, example.targets)
    else:
        explanation = lz.explain(example.model.eval(), *example.inputs)
    explanation.forget_lines()  # none of the user's is behind these: they would name the command-line library's
    if page is not None:
        with user_errors():
            explanation.write_page(page)
        written = byte_count(Path(page).stat().st_size)
        click.echo(f"wrote {page} ({written}), to open in a browser", err=as_json)
    if as_json or page is None:
        click.echo(json.dumps(explanation.to_dict()) if as_json else str(explanation))


def _is_onnx(model: str) -> bool:
    return Path(model).suffix == ".onnx"


def _example_of(model: str, batch: int, shapes: tuple[str, ...]) -> Any:
    """A network with something to call it with, by its name or from a file."""
    from lezero.cli.networks import NETWORKS, Classifier
    from lezero.cli.others import OTHERS, unknown_network

    if _is_onnx(model):
        from lezero.cli.onnx import example_of

        return example_of(model, batch, shapes)
    if shapes:
        raise click.UsageError("--shape is for .onnx files")
    if model in OTHERS:
        return OTHERS[model](batch)
    if model in NETWORKS:
        return _classifying(Classifier(model, NETWORKS[model].shown, [str(n) for n in range(10)]), batch)
    if Path(model).suffix == ".lzm":
        with user_errors():
            return _classifying(Classifier.open(model), batch)
    raise click.UsageError(f"{model!r} is no .lzm or .onnx file, and {unknown_network(model)}")


def _classifying(classifier: Any, batch: int) -> Any:
    import numpy as np

    import lezero as lz
    from lezero.cli.others import Example
    from lezero.nn import functional as F

    rng = np.random.default_rng(0)
    images = rng.random((batch, 1, classifier.size, classifier.size), np.float32)
    labels = rng.integers(0, len(classifier.classes), batch)
    return Example(classifier.model, (lz.tensor(images),), lz.tensor(labels), F.cross_entropy)


def _step(example: Any) -> Any:
    """A function of inputs and targets that trains a copy of the model for one step."""
    import copy

    import lezero as lz

    model = copy.deepcopy(example.model).train()
    optimizer = lz.optim.AdamW(model.parameters(), lr=1e-3)

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = example.loss(model(*batch[:-1]), batch[-1])
        loss.backward()
        optimizer.step()
        return loss

    return step


def training_step(classifier: Any, batch: int) -> tuple[Any, tuple[Any, Any]]:
    """(a function that trains a copy of the model for one step, example arguments)."""
    example = _classifying(classifier, batch)
    return _step(example), (*example.inputs, example.targets)


def step_summary(classifier: Any, batch: int = 64) -> str:
    """Nodes, kernels, bytes moved and peak memory of a training step, before and after restructuring."""
    import lezero as lz

    step, arguments = training_step(classifier, batch)
    return lz.explain(step, *arguments).summary()
