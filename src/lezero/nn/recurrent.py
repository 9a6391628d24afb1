"""Recurrent layers and their cells, with PyTorch's parameter names.

What goes into all steps is one product; the recurrence is recorded step by step.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import sqrt
from typing import Any

from lezero.nn import functional as F
from lezero.nn import init
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter, new_parameter
from lezero.nn.utils.rnn import PackedSequence, WrittenSequence
from lezero.runtime.whole import WHOLE
from lezero.tensor import Tensor, cat, stack, zeros

State = tuple[Tensor, ...]
"""What a step hands to the next: (h,), or (h, c) of an LSTM; each (batch, features)."""

_NONLINEARITIES = ("tanh", "relu")


class Weights:
    """The weights of one direction of one layer, and a step with them."""

    gates = 1

    def __init__(
        self, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, w_hr: Tensor | None = None
    ):
        self.w_ih, self.w_hh, self.b_ih, self.b_hh, self.w_hr = w_ih, w_hh, b_ih, b_hh, w_hr

    def project(self, x: Tensor) -> Tensor:
        """What the inputs (*, features) add to the gates, with all that does not depend on the state."""
        bias = None if self.b_ih is None or self.b_hh is None else self.b_ih + self.b_hh
        return F.linear(x, self.w_ih, bias)

    def step(self, x: Tensor, state: State) -> State:
        """The state after a step; x (batch, gates · hidden) as ``project`` gives it."""
        raise NotImplementedError


class _Tanh(Weights):
    def step(self, x: Tensor, state: State) -> State:
        return (F.tanh(x + F.linear(state[0], self.w_hh)),)


class _ReLU(Weights):
    def step(self, x: Tensor, state: State) -> State:
        return (F.relu(x + F.linear(state[0], self.w_hh)),)


class _LSTM(Weights):
    gates = 4

    def step(self, x: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = (x + F.linear(h, self.w_hh)).chunk(4, -1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        h = F.sigmoid(o) * F.tanh(c)
        return (h if self.w_hr is None else F.linear(h, self.w_hr)), c


class _GRU(Weights):
    gates = 3

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w_ih, self.b_ih)

    def step(self, x: Tensor, state: State) -> State:
        (h,) = state
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), F.linear(h, self.w_hh, self.b_hh).chunk(3, -1)
        z = F.sigmoid(xz + hz)
        n = F.tanh(xn + F.sigmoid(xr + hr) * hn)
        return (n + z * (h - n),)


KINDS: dict[str, type[Weights]] = {"RNN_TANH": _Tanh, "RNN_RELU": _ReLU, "LSTM": _LSTM, "GRU": _GRU}


def _forwards(weights: Weights, steps: Sequence[Tensor], state: State, sizes: Sequence[int]) -> tuple[list, State]:
    """The states h of all steps, and the last state of each sequence; `sizes` are falling where sequences end."""
    outputs, ended = [], []
    rows = sizes[0]
    for x, size in zip(steps, sizes):
        if size is not rows and size < rows:
            ended.append(tuple(s[size:] for s in state))
            state, rows = tuple(s[:size] for s in state), size
        state = weights.step(x, state)
        outputs.append(state[0])
    return outputs, tuple(cat(parts) for parts in zip(state, *ended[::-1])) if ended else state


def _backwards(weights: Weights, steps: Sequence[Tensor], state: State, sizes: Sequence[int]) -> tuple[list, State]:
    """The same from the last step to the first: sequences begin where sizes rise."""
    outputs, first = [], state
    rows = sizes[-1]
    if rows is not sizes[0]:
        state = tuple(s[:rows] for s in first)
    for x, size in zip(reversed(steps), reversed(sizes)):
        if size is not rows and size > rows:
            state, rows = tuple(cat([s, f[rows:size]]) for s, f in zip(state, first)), size
        state = weights.step(x, state)
        outputs.append(state[0])
    return outputs[::-1], state


def run_layers(
    layers: Sequence[Sequence[Weights]], x: Tensor, state: State, sizes: list, packed: bool, dropout: float
) -> tuple[Tensor, State]:
    """All layers, one after the other.

    Parameters
    ----------
    layers : weights of the forward and, if there is one, of the backward direction, for each layer
    x : (length, batch, features), or (rows, features) if packed
    state : (layers · directions, batch, features) each
    sizes : the batch at each step
    dropout : the share of what goes from one layer to the next that is dropped

    Returns
    -------
    the last layer's h at each step, shaped as `x`; and the last state of all layers, shaped as `state`
    """
    whole = WHOLE.parts.get("layers")
    if whole is not None and not packed and (made := whole(layers, x, state, dropout)) is not None:
        return made
    last = []
    for number, directions in enumerate(layers):
        if number and dropout:
            x = F.dropout(x, dropout)
        sides = []
        for k, weights in enumerate(directions):
            gates, at = weights.project(x), number * len(directions) + k
            steps = gates.split(sizes) if packed else gates.unbind(0)
            outputs, after = (_backwards if k else _forwards)(weights, steps, tuple(s[at] for s in state), sizes)
            sides.append(cat(outputs) if packed else stack(outputs))
            last.append(after)
        x = sides[0] if len(sides) == 1 else cat(sides, -1)
    return x, tuple(stack(parts) for parts in zip(*last))


class RNNBase(Module):
    """What recurrent layers share: parameters, layers, directions, and inputs padded or packed.

    Parameters
    ----------
    mode : {"RNN_TANH", "RNN_RELU", "LSTM", "GRU"}
    input_size, hidden_size : int, features of an input's step and of the state
    num_layers : int; each layer reads the one before
    bias : bool
    batch_first : inputs and outputs are (batch, length, features), not (length, batch, features)
    dropout : the share of what goes from one layer to the next that is dropped in training
    bidirectional : a second set of weights reads from the end, and features of both stand side by side
    proj_size : features that an LSTM's h is projected to; 0 for none

    Attributes
    ----------
    weight_ih_l[k], weight_hh_l[k] : (gates · hidden_size, features), uniform within ±1/√hidden_size; with the ending
        ``_reverse`` those of the second direction
    bias_ih_l[k], bias_hh_l[k] : (gates · hidden_size,), likewise
    weight_hr_l[k] : (proj_size, hidden_size), likewise
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        name = type(self).__name__
        if mode not in KINDS:
            raise ValueError(f"{name}: mode is one of {', '.join(KINDS)}, got {mode!r}")
        if hidden_size < 1 or num_layers < 1:
            raise ValueError(
                f"{name}: hidden_size and num_layers are 1 or more, got hidden_size={hidden_size}, num_layers={num_layers}"
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"{name}: dropout is a probability between 0 and 1, got {dropout}")
        if proj_size and (mode != "LSTM" or not 0 < proj_size < hidden_size):
            raise ValueError(f"{name}: proj_size is for an LSTM, and below hidden_size={hidden_size}; got {proj_size}")
        if dropout and num_layers == 1:
            warnings.warn(f"{name}: dropout is between layers, and there is one only", stacklevel=3)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._ends = ("", "_reverse") if bidirectional else ("",)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        rows, state = KINDS[mode].gates * hidden_size, proj_size or hidden_size
        for layer in range(num_layers):
            features = input_size if layer == 0 else state * len(self._ends)
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, features), "weight_hh": (rows, state)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden_size)
            for end in self._ends:
                for kind, shape in shapes.items():
                    self.register_parameter(f"{kind}_l{layer}{end}", new_parameter(*shape, **made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: weights are read where they lie."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        own = self.__dict__
        return [
            [own[n] for n in self._parameter_names if n.endswith(f"_l{layer}{end}")]
            for layer in range(self.num_layers)
            for end in self._ends
        ]

    def _weights(self, layer: int, end: str) -> Weights:
        def own(kind: str) -> Any:  # by attribute: it may be computed (nn.utils.parametrize)
            return getattr(self, f"{kind}_l{layer}{end}")

        b_ih, b_hh = (own("bias_ih"), own("bias_hh")) if self.bias else (None, None)
        w_hr = own("weight_hr") if self.proj_size else None
        return KINDS[self.mode](own("weight_ih"), own("weight_hh"), b_ih, b_hh, w_hr)

    def _widths(self) -> tuple[int, ...]:
        """Features of each part of the state."""
        h = self.proj_size or self.hidden_size
        return (h, self.hidden_size) if self.mode == "LSTM" else (h,)

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Read sequences.

        Parameters
        ----------
        input : (length, batch, features), (batch, length, features) with `batch_first`, (length, features), or a PackedSequence
        hx : (num_layers · directions, batch, hidden_size), or without batch as the input; an LSTM takes a pair (h, c), h of
            `proj_size` features where that is given; zeros unless given

        Returns
        -------
        the last layer's h at each step, shaped or packed as the input; and the last state of all layers, shaped as `hx`
        """
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: an input of {self.input_size} features and 3 dimensions (or 2, without a batch) is "
                f"needed, got shape {tuple(input.shape)}"
            )
        alone = input.ndim == 2
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if self.batch_first else input
        if int(x.shape[0]) < 1:
            raise ValueError(f"{type(self).__name__}: sequences of one step or more are needed")
        batch = x.shape[1]
        state = self._initial(hx, None if alone else batch, x)
        y, last = self._layers(x, state, [batch] * int(x.shape[0]), packed=False)
        if alone:
            return y.squeeze(1), self._given(tuple(s.squeeze(1) for s in last))
        return y.transpose(0, 1) if self.batch_first else y, self._given(last)

    def _packed(self, sequence: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        if isinstance(sequence, WrittenSequence):
            return self._written(sequence, hx)
        data, order, back = sequence.data, sequence.sorted_indices, sequence.unsorted_indices
        self._check_packed(data, 2, "steps")
        sizes = [int(n) for n in sequence.sizes()]
        state = self._initial(hx, sizes[0], data)
        if hx is not None and order is not None:
            state = tuple(s.index_select(1, order) for s in state)
        y, last = self._layers(data, state, sizes, packed=True)
        if back is not None:
            last = tuple(s.index_select(1, back) for s in last)
        return sequence.with_data(y), self._given(last)

    def _check_packed(self, data: Tensor, rank: int, rows: str) -> None:
        if data.ndim != rank or data.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: packed data ({rows}, {self.input_size}) is needed, got shape {tuple(data.shape)}"
            )

    def _written(self, sequence: WrittenSequence, hx: Any) -> tuple[WrittenSequence, Any]:
        x = sequence.padded
        self._check_packed(x, 3, "length, batch")
        state = self._initial(hx, x.shape[1], x)
        made = WHOLE.parts["layers"](self._layer_weights(), x, state, self._dropout(), sequence.lengths)
        if made is None:
            raise ValueError(
                f"{type(self).__name__}: packed sequences whose lengths are an argument of the model are written in float32 and "
                f"float16 only, without autocast or gradients, got {x.dtype.name}"
            )
        return WrittenSequence(made[0], sequence.lengths), self._given(made[1])

    def _initial(self, hx: Any, batch: Any, x: Tensor) -> State:
        """The first states, (layers · directions, batch, features) each; `batch` is None without one."""
        layers, widths = self.num_layers * len(self._ends), self._widths()
        if hx is None:
            return tuple(zeros(layers, 1 if batch is None else batch, w, dtype=x.dtype) for w in widths)
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        wanted = [(layers, w) if batch is None else (layers, int(batch), w) for w in widths]
        if [tuple(s.shape) for s in states] != wanted:
            raise ValueError(
                f"{type(self).__name__}: states of shape {' and '.join(map(str, wanted))} are needed, got "
                f"{' and '.join(str(tuple(s.shape)) for s in states)}"
            )
        return tuple(s.unsqueeze(1) for s in states) if batch is None else states

    def _given(self, state: State) -> Any:
        return state if len(state) > 1 else state[0]

    def _layers(self, x: Tensor, state: State, sizes: list, packed: bool) -> tuple[Tensor, State]:
        return run_layers(self._layer_weights(), x, state, sizes, packed, self._dropout())

    def _layer_weights(self) -> list[list[Weights]]:
        return [[self._weights(layer, end) for end in self._ends] for layer in range(self.num_layers)]

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def extra_repr(self) -> str:
        shown = [str(self.input_size), str(self.hidden_size)]
        defaults = dict(num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False, proj_size=0)
        shown += [f"{k}={self.__dict__[k]}" for k, usual in defaults.items() if self.__dict__[k] != usual]
        return ", ".join(shown)


class RNN(RNNBase):
    """``h = tanh(w_ih x + b_ih + w_hh h + b_hh)`` at each step (Elman 1990); `nonlinearity` may be "relu" instead.

    Further parameters, inputs and outputs are those of :class:`RNNBase`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        _check_nonlinearity("RNN", nonlinearity)
        self.nonlinearity = nonlinearity
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(
            mode,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter & Schmidhuber 1997): the state is a pair (h, c).

    With σ the logistic function, and each gate its own rows of the weights, in the order i, f, g, o::

        i, f, o = σ(w_ih x + b_ih + w_hh h + b_hh),  g = tanh(…)
        c = f · c + i · g
        h = o · tanh(c)        and h = w_hr h where proj_size is given (Sak et al. 2014)

    Parameters, inputs and outputs are those of :class:`RNNBase`, without `mode`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
        )


class GRU(RNNBase):
    """Gated recurrent units (Cho et al. 2014), with the reset gate applied to the product.

    With σ the logistic function, and each gate its own rows of the weights, in the order r, z, n::

        r, z = σ(w_ih x + b_ih + w_hh h + b_hh)
        n = tanh(w_ih x + b_ih + r · (w_hh h + b_hh))
        h = (1 - z) · n + z · h

    Parameters, inputs and outputs are those of :class:`RNNBase`, without `mode` and `proj_size`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )


def _check_nonlinearity(name: str, nonlinearity: str) -> None:
    if nonlinearity not in _NONLINEARITIES:
        raise ValueError(f"{name}: nonlinearity is 'tanh' or 'relu', got {nonlinearity!r}")


class RNNCellBase(Module):
    """One step of a recurrent layer.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    num_chunks : int, the gates

    Attributes
    ----------
    weight_ih, weight_hh : (gates · hidden_size, features), uniform within ±1/√hidden_size
    bias_ih, bias_hh : (gates · hidden_size,), likewise; or None
    """

    mode: str
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = new_parameter(rows, input_size, device=device, dtype=dtype)
        self.weight_hh = new_parameter(rows, hidden_size, device=device, dtype=dtype)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, new_parameter(rows, device=device, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / sqrt(self.hidden_size) if self.hidden_size else 0.0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _step(self, x: Tensor, hx: State | None, parts: int) -> State:
        name = type(self).__name__
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"{name}: an input (batch, {self.input_size}) or ({self.input_size},) is needed, got shape {tuple(x.shape)}"
            )
        lead = x.shape[:-1]
        state = hx or tuple(zeros(*lead, self.hidden_size, dtype=x.dtype) for _ in range(parts))
        for s in state:
            if tuple(s.shape) != (*lead, self.hidden_size):
                raise ValueError(
                    f"{name}: a state of shape {(*lead, self.hidden_size)} is needed for an input {tuple(x.shape)}, got "
                    f"{tuple(s.shape)}"
                )
        weights = KINDS[self.mode](self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return weights.step(weights.project(x), state)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(RNNCellBase):
    """One step of an :class:`RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ):
        _check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity, self.mode = nonlinearity, f"RNN_{nonlinearity.upper()}"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """(batch, input_size), (batch, hidden_size) -> (batch, hidden_size); or without batch"""
        return self._step(input, None if hx is None else (hx,), 1)[0]


class LSTMCell(RNNCellBase):
    """One step of an :class:`LSTM`."""

    mode = "LSTM"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """(batch, input_size), a pair of (batch, hidden_size) -> the next pair; or without batch"""
        h, c = self._step(input, None if hx is None else tuple(hx), 2)
        return h, c


class GRUCell(RNNCellBase):
    """One step of a :class:`GRU`."""

    mode = "GRU"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """(batch, input_size), (batch, hidden_size) -> (batch, hidden_size); or without batch"""
        return self._step(input, None if hx is None else (hx,), 1)[0]
