"""Recurrent layers: a step at a time, with what does not depend on the step before computed for all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, operator
from lezero.tensor import Tensor

Activation = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "relu": (F.relu, ()),
    "tanh": (lz.tanh, ()),
    "sigmoid": (lz.sigmoid, ()),
    "softsign": (F.softsign, ()),
    "softplus": (F.softplus, ()),
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "leakyrelu": (F.leaky_relu, (0.01,)),
    "thresholdedrelu": (lambda x, a: lz.where(x > a, x, 0.0).to(x.dtype), (1.0,)),
    "scaledtanh": (lambda x, a, b: a * lz.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, a, b: lz.clamp(a * x + b, 0, 1), (0.2, 0.5)),
    "elu": (F.elu, (1.0,)),
}
"""Functions, and what alpha and beta are unless given."""


def _chosen(
    names: list[str] | None, usual: list[str], directions: int, alpha: list[float] | None, beta: list[float] | None
) -> list[list[Activation]]:
    """The activations of each direction; parameters go to those that take them, in order."""
    alphas, betas = iter(alpha or ()), iter(beta or ())
    found: list[Activation] = []
    for name in names or usual * directions:
        if name.lower() not in _ACTIVATIONS:
            raise OnnxError(f"activation {name!r} is not known")
        compute, defaults = _ACTIVATIONS[name.lower()]
        given = [next(source, usual) for source, usual in zip((alphas, betas), defaults)]
        found.append(_with(compute, given))
    each = len(found) // directions
    return [found[k * each : (k + 1) * each] for k in range(directions)]


def _with(compute: Callable[..., Tensor], given: list[float]) -> Activation:
    return lambda x: compute(x, *given)


def _recurrent(
    step: Callable[..., tuple[Tensor, ...]], gates: int, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None,
    lengths: Tensor | None, states: list[Tensor | None], activations: list[list[Activation]], direction: str, clip: float | None,
    layout: int, peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All directions of a layer.

    step : (what the input adds to the gates, states, weights, recurrent bias, peepholes, activations, clip) -> new states
    """
    if layout:
        x = lz.transpose(x, 0, 1)
        states = [None if s is None else lz.transpose(s, 0, 1) for s in states]
    steps, batch, hidden = int(x.shape[0]), x.shape[1], r.shape[2]
    outputs, last = [], []
    for d in range(int(w.shape[0])):
        biases = None if b is None else b.select(0, d)
        forced = lz.matmul(x, w.select(0, d).t())
        if biases is not None:
            forced = forced + biases.narrow(0, 0, gates * hidden)
        recurrent = None if biases is None else biases.narrow(0, gates * hidden, gates * hidden)
        holes = None if peepholes is None else peepholes.select(0, d)
        now = tuple(lz.zeros((batch, hidden), dtype=x.dtype) if s is None else s.select(0, d) for s in states)
        backwards = direction == "reverse" or d == 1
        rows: list[Any] = [None] * steps
        for t in range(steps - 1, -1, -1) if backwards else range(steps):
            new = step(forced.select(0, t), now, r.select(0, d).t(), recurrent, holes, activations[d], clip)
            rows[t] = new[0]
            if lengths is not None:
                within = (lengths > t).reshape(-1, 1)
                rows[t] = lz.where(within, new[0], 0.0).to(x.dtype)
                new = tuple(lz.where(within, n, o) for n, o in zip(new, now))
            now = new
        outputs.append(lz.stack(rows, 0))
        last.append(now)
    y = lz.stack(outputs, 1)
    ends = [lz.stack([now[k] for now in last], 0) for k in range(len(states))]
    if layout:
        y, ends = lz.permute(y, (2, 0, 1, 3)), [lz.transpose(e, 0, 1) for e in ends]
    return (y, *ends)


def _clipped(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else lz.clamp(x, -clip, clip)


def _parts(x: Tensor, n: int) -> list[Tensor]:
    size = x.shape[-1] // n
    return [x.narrow(-1, k * size, size) for k in range(n)]


def _rnn_step(
    forced: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None, _: Any, activations: list[Activation], clip: float | None
) -> tuple[Tensor, ...]:  # fmt: skip
    total = forced + lz.matmul(states[0], r)
    return (activations[0](_clipped(total if bias is None else total + bias, clip)),)


def _gru_step(linear_before_reset: int) -> Callable[..., tuple[Tensor, ...]]:
    def step(
        forced: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None, _: Any, activations: list[Activation], clip: float | None
    ) -> tuple[Tensor, ...]:  # fmt: skip
        (h,), size = states, states[0].shape[-1]
        rb = bias if bias is not None else lz.zeros(3 * size, dtype=h.dtype)
        inner, outer = activations
        gates = forced.narrow(-1, 0, 2 * size) + lz.matmul(h, r.narrow(1, 0, 2 * size)) + rb.narrow(0, 0, 2 * size)
        update, reset = (inner(_clipped(g, clip)) for g in _parts(gates, 2))
        rh, rbh = r.narrow(1, 2 * size, size), rb.narrow(0, 2 * size, size)
        if linear_before_reset:
            turned = reset * (lz.matmul(h, rh) + rbh)
        else:
            turned = lz.matmul(reset * h, rh) + rbh
        new = outer(_clipped(forced.narrow(-1, 2 * size, size) + turned, clip))
        return ((1 - update) * new + update * h,)

    return step


def _lstm_step(input_forget: int) -> Callable[..., tuple[Tensor, ...]]:
    def step(
        forced: Tensor, states: tuple[Tensor, ...], r: Tensor, bias: Tensor | None, holes: Tensor | None,
        activations: list[Activation], clip: float | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        h, c = states
        f, g, after = activations
        total = forced + lz.matmul(h, r)
        i, o, forget, cell = _parts(total if bias is None else total + bias, 4)
        pi, po, pf = (None, None, None) if holes is None else _parts(holes, 3)
        i = f(_clipped(i if pi is None else i + pi * c, clip))
        forget = 1 - i if input_forget else f(_clipped(forget if pf is None else forget + pf * c, clip))
        c = forget * c + i * g(_clipped(cell, clip))
        o = f(_clipped(o if po is None else o + po * c, clip))
        return o * after(c), c

    return step


@operator("RNN", 1)
def rnn(
    _: Context, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    initial: Tensor | None = None, *, hidden_size: int | None = None, activations: list[str] | None = None,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None, clip: float | None = None,
    direction: str = "forward", layout: int = 0, output_sequence: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    chosen = _chosen(activations, ["Tanh"], int(w.shape[0]), activation_alpha, activation_beta)
    return _recurrent(_rnn_step, 1, x, w, r, b, lengths, [initial], chosen, direction, clip, layout)


@operator("GRU", 1)
def gru(
    _: Context, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    initial: Tensor | None = None, *, hidden_size: int | None = None, activations: list[str] | None = None,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None, clip: float | None = None,
    direction: str = "forward", layout: int = 0, linear_before_reset: int = 0, output_sequence: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    chosen = _chosen(activations, ["Sigmoid", "Tanh"], int(w.shape[0]), activation_alpha, activation_beta)
    step = _gru_step(linear_before_reset)
    return _recurrent(step, 3, x, w, r, b, lengths, [initial], chosen, direction, clip, layout)


@operator("LSTM", 1)
def lstm(
    _: Context, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    initial: Tensor | None = None, initial_cell: Tensor | None = None, peepholes: Tensor | None = None, *,
    hidden_size: int | None = None, activations: list[str] | None = None, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None, clip: float | None = None, direction: str = "forward", layout: int = 0,
    input_forget: int = 0, output_sequence: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    usual = ["Sigmoid", "Tanh", "Tanh"]
    chosen = _chosen(activations, usual, int(w.shape[0]), activation_alpha, activation_beta)
    step, states = _lstm_step(input_forget), [initial, initial_cell]
    return _recurrent(step, 4, x, w, r, b, lengths, states, chosen, direction, clip, layout, peepholes)
