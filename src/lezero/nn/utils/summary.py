"""A table of a model's modules, with output shapes and parameter counts."""

from __future__ import annotations

from typing import Any

from lezero.nn.module import Module
from lezero.tensor import Tensor, no_grad


def summary(model: Module, *inputs: Any) -> str:
    """Every module with its parameters, and with its output's shape if example inputs are given.

    The example is only recorded: no value is computed.
    """
    shapes: dict[int, str] = {}
    if any(isinstance(x, (tuple, list)) and x and all(type(d) is int for d in x) for x in inputs):
        raise TypeError(f"summary: example inputs are tensors, got {inputs}; for a shape give lz.zeros(*shape)")
    if inputs:
        handles = [m.register_forward_hook(_noting(shapes)) for m in model.modules()]
        was_training = model.training
        try:
            with no_grad():
                model.eval()(*inputs)
        finally:
            model.train(was_training)
            for h in handles:
                h.remove()
    rows = [("module", "kind", "output", "parameters")]
    for path, module in model.named_modules():
        own = sum(int(p.numel()) for p in module.parameters(recurse=False))
        depth = path.count(".") + 1 if path else 0
        name = "  " * depth + (path.rpartition(".")[2] or "(model)")
        rows.append((name, type(module).__name__, shapes.get(id(module), ""), f"{own:,}" if own else ""))
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    lines = [
        "  ".join((n.ljust(widths[0]), k.ljust(widths[1]), s.ljust(widths[2]), p.rjust(widths[3])))
        for n, k, s, p in rows
    ]
    total = sum(int(p.numel()) for p in model.parameters())
    trained = sum(int(p.numel()) for p in model.parameters() if p.requires_grad)
    lines.insert(1, "-" * len(lines[0]))
    lines.append(f"{total:,} parameters, {trained:,} of them trained")
    return "\n".join(lines)


def _noting(shapes: dict[int, str]) -> Any:
    def note(module: Module, args: tuple, output: Any) -> None:
        shapes[id(module)] = _shape(output)

    return note


def _shape(output: Any) -> str:
    if isinstance(output, Tensor):
        return "×".join(str(int(d)) for d in output.shape) or "scalar"
    if isinstance(output, (tuple, list)):
        return ", ".join(_shape(o) for o in output)
    return type(output).__name__
