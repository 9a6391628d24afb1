"""``lezero convert``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from lezero.cli.data import check_output, user_errors

SHOWN = 5


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--model", help="The model of lezero.models that the weights have to be of, such as resnet50.")
@click.option("--names", help="Whose names the tensors get: torchvision, huggingface or lezero [as they are].")
@click.option("--dtype", help="What floating tensors are rounded to: bfloat16, float16, float32 or float64.")
@click.option("--entry", help="The part of SOURCE that the weights are, where it holds several.")
@click.option("--force", is_flag=True, help="Replace TARGET if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def convert(
    source: Path, target: Path, model: str | None, names: str | None, dtype: str | None, entry: str | None, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Convert the weights in SOURCE to TARGET.

    SOURCE is a .safetensors file or the .index.json of several, PyTorch's .pth of either format, .lzm, .npz, or a model in
    ONNX; TARGET ends with .safetensors, .pth, .lzm or .npz. Nothing in SOURCE is executed.
    """
    from lezero.converting import convert_weights

    check_output("TARGET", target)
    if target.exists() and not force:
        raise click.UsageError(f"TARGET: {str(target)!r} is there already; --force replaces it")
    with _progress() as progress, _mistakes():
        done = convert_weights(
            source, target, model=model, names=names, dtype=dtype, entry=entry, overwrite=force, progress=progress
        )
    facts = _facts(source, target, done, names)
    click.echo(json.dumps(facts) if as_json else _summary(facts))


@contextmanager
def _mistakes() -> Iterator[None]:
    with user_errors():
        try:
            yield
        except (ImportError, OverflowError, TypeError) as error:
            raise click.ClickException(str(error)) from error


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows what is being done, where somebody looks."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda stage: status.update(f"{stage} …")


def _facts(source: Path, target: Path, done: Any, names: str | None) -> dict[str, Any]:
    dtypes: dict[str, int] = {}
    for t in done.tensors.values():
        dtypes[t.dtype.name] = dtypes.get(t.dtype.name, 0) + 1
    return {
        "source": str(source),
        "target": str(target),
        "tensors": len(done.tensors),
        "values": sum(t.numel() for t in done.tensors.values()),
        "dtypes": dtypes,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "model": done.model,
        "names": None if done.naming is None else [done.naming, names or done.naming],
        "entry": done.entry,
        "left_out": done.left_out,
    }


def _summary(facts: dict[str, Any]) -> str:
    dtypes = ", ".join(f"{count} {name}" for name, count in facts["dtypes"].items())
    lines = [f"{facts['target']}: {facts['tensors']} tensors ({dtypes}), {facts['values']:,} values, {_size(facts)}"]
    if facts["entry"] is not None:
        lines.append(f"  of {facts['source']}: {facts['entry']}")
    if facts["names"] is not None:
        have, given = facts["names"]
        lines.append(f"  names: {facts['model']}'s, {have}" + ("" if given == have else f" → {given}"))
    left = facts["left_out"]
    if left:
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        lines.append(f"  left out: {', '.join(left[:SHOWN])}{more}")
    return "\n".join(lines)


def _size(facts: dict[str, Any]) -> str:
    from lezero.runtime.figures import byte_count

    before, after = (byte_count(facts[k]) for k in ("bytes_before", "bytes_after"))
    return after if before == after else f"{before} → {after}"
