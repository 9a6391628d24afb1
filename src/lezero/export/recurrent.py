"""Recurrent layers as ONNX's operators, which take sequences of any length.

While a model is recorded for a file, ``nn.recurrent`` gives its layers to a :class:`Recorder`.  Each becomes operations with the
same operands, one for every part of the result, and these one operator in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from lezero.export.errors import ExportError
from lezero.export.operators import emits
from lezero.export.writer import Writer
from lezero.graph.dim import Dim
from lezero.graph.dtype import float16, float32, float64, int32
from lezero.graph.node import Node
from lezero.nn import functional as F
from lezero.nn.parameter import constant_tensor
from lezero.nn.recurrent import KINDS, State, Weights
from lezero.ops.base import Composite
from lezero.runtime.leaves import import_handle
from lezero.runtime.recording import STATE
from lezero.tensor import Tensor, cat, stack, zeros, zeros_like

_MODES = {kind: mode for mode, kind in KINDS.items()}
_OPERATORS: dict[str, tuple[str, str | None, tuple[int, ...]]] = {
    "RNN_TANH": ("RNN", "Tanh", (0,)),
    "RNN_RELU": ("RNN", "Relu", (0,)),
    "LSTM": ("LSTM", None, (0, 3, 1, 2)),  # i, o, f, c of our i, f, g, o
    "GRU": ("GRU", None, (1, 0, 2)),  # z, r, h of our r, z, n
}
"""The operator, its activation unless that is the usual one, and which of our gates each of its gates is."""


class _Layer(Composite):
    """A part of what an operator of ONNX gives; it is written and never run.

    Parameters
    ----------
    x : (length, batch, features)
    w, r : (directions, gates · hidden, features), (directions, gates · hidden, hidden)
    optional : the biases (directions, 2 · gates · hidden), the sequences' lengths (batch,), the first h and the first c
        (directions, batch, hidden), as far as `present` says that they are there
    part : 0 for h at every step, (length, directions, batch, hidden); 1 and 2 for the last h and c (directions, batch, hidden)
    """

    attrs = {"operator": "LSTM", "activation": None, "present": (), "part": 0}
    differentiable = False

    @staticmethod
    def infer(x, w, r, *optional, operator, activation, present, part):
        state = (w.shape[0], x.shape[1], r.shape[2])
        return (state if part else (x.shape[0], *state)), x.dtype


_LAYER = _Layer("recurrent_layer", None)


@emits("recurrent_layer")
def _written(w: Writer, node: Node, operands: Sequence[str]) -> str:
    operator, activation, present, part = node.attrs
    directions, hidden = int(node.inputs[1].shape[0]), int(node.inputs[2].shape[2])
    given = iter(operands[3:])
    optional = [next(given) if there else "" for there in present]

    def write() -> list[str]:
        return w.add(
            operator,
            [*operands[:3], *optional],
            outputs=len(optional) - 1,
            hidden_size=hidden,
            direction="bidirectional" if directions == 2 else "forward",
            activations=[activation] * directions if activation else None,
            linear_before_reset=1 if operator == "GRU" else None,
        )

    return w.once(("recurrent_layer", *operands, *node.attrs[:3]), write)[part]


class Recorder:
    """Records layers as ``nn.recurrent.run_layers`` does, which asks it first.

    inputs : the recording's arguments
    names : of parameters by identity; the operators' weights are added
    """

    def __init__(self, inputs: Collection[Node], names: dict[int, str]):
        self.inputs, self.names = inputs, names
        self._made: dict[tuple, Sequence[Tensor | None]] = {}

    def __call__(
        self,
        layers: Sequence[Sequence[Weights]],
        x: Tensor,
        state: State,
        dropout: float,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State] | None:
        if not _has_operator(layers, x):
            return None
        counts = None if lengths is None else lengths._cast(int32)
        last = []
        absent = [_is_zero(s) for s in state]
        for number, directions in enumerate(layers):
            if number and dropout:
                x = F.dropout(x, dropout)
            n = len(directions)
            before = state if len(layers) == 1 else tuple(s[number * n : (number + 1) * n] for s in state)
            x, after = self._layer(directions, x, counts, [None if no else s for s, no in zip(before, absent)])
            last.append(after)
        return x, last[0] if len(last) == 1 else tuple(cat(parts) for parts in zip(*last))

    def _layer(
        self, directions: Sequence[Weights], x: Tensor, lengths: Tensor | None, state: list[Tensor | None]
    ) -> tuple[Tensor, State]:
        """h of all steps, (length, batch, directions · features), and the last states, (directions, batch, features) each."""
        operator, activation, order = _OPERATORS[_MODES[type(directions[0])]]
        projected = [d.w_hr for d in directions if d.w_hr is not None]
        first = state[0] if projected else None
        if first is not None:
            if lengths is not None and len(directions) == 2:
                raise ExportError("an LSTM with projections begins at the end of packed sequences with a first state")
            x, state = cat([x, *_first_only(first, x)], -1), [None, *state[1:]]
        w, r, b = self._weights(directions, operator, order, first is not None)
        optional = [b, lengths, *state]
        operands = (x, w, r, *(t for t in optional if t is not None))
        present = tuple(t is not None for t in optional)
        y, *last = [
            _LAYER(*operands, operator=operator, activation=activation, present=present, part=part)
            for part in range(1 + len(state))
        ]
        if projected:
            sides = [F.linear(y[:, k], w) for k, w in enumerate(projected)]
            last[0] = stack([F.linear(last[0][k], w) for k, w in enumerate(projected)])
            return sides[0] if len(sides) == 1 else cat(sides, -1), tuple(last)
        return y[:, 0] if len(directions) == 1 else y.transpose(1, 2).flatten(2), tuple(last)

    def _weights(
        self, directions: Sequence[Weights], operator: str, order: Sequence[int], with_first: bool
    ) -> Sequence[Tensor | None]:
        """The operator's weights for inputs and for states, and biases: constants where ours are, and the same every time."""
        key = (*(id(t) for d in directions for t in vars(d).values()), operator, with_first)
        if key in self._made:
            return self._made[key]
        known = [type(d)(*(_constant(t, self.inputs) for t in vars(d).values())) for d in directions]
        if [*map(_there, known)] != [*map(_there, directions)]:
            return _joined(directions, order, with_first, cat, stack, zeros_like)
        arrays = _joined(known, order, with_first, np.concatenate, np.stack, np.zeros_like)
        self._made[key] = made = [None if a is None else constant_tensor(a) for a in arrays]
        for t, source in zip(made, (directions[0].w_ih, directions[0].w_hh, directions[0].b_ih)):
            self.names[id(t)] = f"{self.names.get(id(source), 'weight')}.{operator}"
        return made


def _has_operator(layers: Sequence[Sequence[Weights]], x: Tensor) -> bool:
    """Whether the operators take that; ONNX Runtime has none of float64, for which steps of a known length do."""
    if STATE.autocast is not None or STATE.grad_mode:
        return False
    weights = [t for directions in layers for d in directions for t in vars(d).values() if t is not None]
    types = (float16, float32, float64) if type(x.shape[0]) is Dim else (float16, float32)
    return x.dtype in types and all(t.dtype is x.dtype for t in weights)


def _is_zero(t: Tensor) -> bool:
    if t._rec is not STATE.recording or t._node.op.name != "full":
        return False
    return t._node.named_attrs()["value"] == 0


def _there(weights: Weights) -> list[bool]:
    return [t is not None for t in vars(weights).values()]


def _first_only(h: Tensor, x: Tensor) -> list[Tensor]:
    """The first h (directions, batch, features) as inputs: what each direction meets first, and zeros at all other steps."""
    others = zeros(x.shape[0] - 1, *h.shape[1:], dtype=h.dtype)
    return [cat([others, h[k:]] if k else [h[:1], others]) for k in range(int(h.shape[0]))]


def _joined(
    directions: Sequence[Weights], order: Sequence[int], with_first: bool, join: Callable, pile: Callable, zeros: Callable
) -> Sequence[Any]:  # fmt: skip
    """The operator's weights for inputs and for states, and biases (None without), of tensors or of arrays.

    ONNX has no projections.  The operator's h is the one before it, and what projects it is multiplied into the weights for
    states; of a first state, which is given projected, `with_first` makes inputs.
    """

    def in_order(w: Any) -> Any:
        size = w.shape[0] // len(order)
        return join([w[k * size : (k + 1) * size] for k in order])

    w_rows, r_rows, b_rows = [], [], []
    for number, d in enumerate(directions):
        w, r = in_order(d.w_ih), in_order(d.w_hh)
        if with_first:
            w = join([w, *(r if k == number else zeros(r) for k in range(len(directions)))], -1)
        w_rows.append(w)
        r_rows.append(r if d.w_hr is None else r @ d.w_hr)
        if d.b_ih is not None and d.b_hh is not None:
            b_rows.append(join([in_order(d.b_ih), in_order(d.b_hh)]))
    return pile(w_rows), pile(r_rows), pile(b_rows) if b_rows else None


def _constant(t: Tensor | None, inputs: Collection[Node]) -> Any:
    """The value, an array, of what the recording has from outside, unless that is an argument."""
    if t is None:
        return None
    rec = STATE.recording
    node = t._node if t._rec is rec else import_handle(rec, t)
    if not node.op.is_leaf or node in inputs:
        return None
    return np.asarray(rec.buffers[rec.leaf_nodes.index(node)].array)
