"""``lezero explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lezero.cli.data import check_output, user_errors


@click.command()
@click.argument("model")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1), help="Images in the example.")
@click.option("--train", "training", is_flag=True, help="Explain a whole training step instead of the forward pass.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "page", metavar="FILE", help="Write a page for the browser instead of printing text.")
def explain(model: str, batch: int, training: bool, as_json: bool, page: str | None) -> None:
    """Show what recording and restructuring make of a model.

    MODEL is an .lzm file, or the name of a network: residual, lenet5 or resnet18.
    """
    import lezero as lz
    from lezero.cli.networks import NETWORKS, Classifier
    from lezero.runtime.figures import byte_count

    if page is not None:
        check_output("--html", Path(page))
    if model in NETWORKS:
        size = NETWORKS[model][1] or (64 if model == "resnet18" else 28)
        classifier = Classifier(model, size, [str(n) for n in range(10)])
    elif Path(model).suffix == ".lzm":
        with user_errors():
            classifier = Classifier.open(model)
    else:
        raise click.UsageError(f"{model!r} is neither an .lzm file nor one of {', '.join(NETWORKS)}")
    if training:
        step, arguments = training_step(classifier, batch)
        explanation = lz.explain(step, *arguments)
    else:
        classifier.model.eval()
        explanation = lz.explain(classifier.model, _example(classifier, batch)[0])
    explanation.forget_lines()  # none of the user's is behind these: they would name the command-line library's
    if page is not None:
        with user_errors():
            explanation.write_page(page)
        written = byte_count(Path(page).stat().st_size)
        click.echo(f"wrote {page} ({written}), to open in a browser", err=as_json)
    if as_json or page is None:
        click.echo(json.dumps(explanation.to_dict()) if as_json else str(explanation))


def training_step(classifier: Any, batch: int) -> tuple[Any, tuple[Any, Any]]:
    """(a function that trains a copy of the model for one step, example arguments)."""
    import copy

    import lezero as lz
    from lezero.nn import functional as F

    model = copy.deepcopy(classifier.model).train()
    optimizer = lz.optim.AdamW(model.parameters(), lr=1e-3)

    def step(images: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step, _example(classifier, batch)


def _example(classifier: Any, batch: int) -> tuple[Any, Any]:
    import numpy as np

    import lezero as lz

    rng = np.random.default_rng(0)
    images = rng.random((batch, 1, classifier.size, classifier.size), np.float32)
    return lz.tensor(images), lz.tensor(rng.integers(0, len(classifier.classes), batch))


def step_summary(classifier: Any, batch: int = 64) -> str:
    """Nodes, kernels, bytes moved and peak memory of a training step, before and after restructuring."""
    import lezero as lz

    step, arguments = training_step(classifier, batch)
    return lz.explain(step, *arguments).summary()
