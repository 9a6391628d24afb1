"""PyTorch's recurrent operations, whose weights come as flat lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lezero.nn.recurrent import KINDS, Weights, run_layers
from lezero.tensor import Tensor


def _weights(
    mode: str, flat: Sequence[Tensor], biases: bool, layers: int, bidirectional: bool, projected: bool
) -> list[list[Weights]]:
    """The weights of each layer and direction: w_ih, w_hh, then biases and what projects h, where they are there."""
    each = 2 + 2 * biases + projected
    made = []
    for start in range(0, len(flat), each):
        w_ih, w_hh, *more = flat[start : start + each]
        b_ih, b_hh = more[:2] if biases else (None, None)
        made.append(KINDS[mode](w_ih, w_hh, b_ih, b_hh, more[-1] if projected else None))
    directions = 2 if bidirectional else 1
    return [made[k * directions : (k + 1) * directions] for k in range(layers)]


def layers_of(mode: str) -> Callable[..., tuple[Tensor, ...]]:
    """``aten.lstm``, ``aten.gru``, … of padded sequences; ``torch.export`` takes no packed ones."""

    def call(
        x: Tensor, hx: Any, flat: Sequence[Tensor], biases: bool, layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        projected = len(flat) // (layers * (2 if bidirectional else 1)) == 3 + 2 * biases
        weights = _weights(mode, flat, biases, layers, bidirectional, projected)
        x = x.transpose(0, 1) if batch_first else x
        sizes = [x.shape[1]] * int(x.shape[0])
        y, last = run_layers(weights, x, state, sizes, False, dropout if train else 0.0)
        return (y.transpose(0, 1) if batch_first else y, *last)

    return call


def cell_of(mode: str) -> Callable[..., Any]:
    """``aten.lstm_cell`` and its like: one step."""

    def call(x: Tensor, state: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
        weights = KINDS[mode](w_ih, w_hh, b_ih, b_hh)
        after = weights.step(weights.project(x), (state,) if isinstance(state, Tensor) else tuple(state))
        return after if len(after) > 1 else after[0]

    return call
