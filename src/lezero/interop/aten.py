"""PyTorch's ATen operations as LeZero's.

``torch.export`` writes a module in operations that mostly have the names and arguments of PyTorch's public functions, which are
ours too.  Those are found by name; the table here has the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import pi, prod
from typing import Any

import lezero as lz
from lezero.interop.recurrent import cell_of, layers_of
from lezero.nn import functional as F
from lezero.tensor import Tensor

Function = Callable[..., Any]
OPERATIONS: dict[str, Function] = {}


def aten(*names: str) -> Callable[[Function], Function]:
    def register(f: Function) -> Function:
        for name in names:
            OPERATIONS[name] = f
        return f

    return register


_FAMILIES = {"linalg_": lz.linalg, "fft_": lz.fft, "special_": lz.special}
REDUCTIONS = ("none", "mean", "sum")


def find(name: str, arguments: Sequence[str] = ()) -> Function | None:
    """The function for ``aten.name``: from the table, or ours of that name.

    arguments : their names in ATen's schema.  Ours are called by name where they have these: not all are in the same order.
    """
    if name in OPERATIONS:
        return OPERATIONS[name]
    for prefix, module in _FAMILIES.items():
        found = getattr(module, name.removeprefix(prefix), None) if name.startswith(prefix) else None
        if callable(found):
            return _by_name(found, arguments)
    for place in (F, lz):
        found = getattr(place, name, None)
        if callable(found):
            return _by_name(found, arguments)
    method = getattr(Tensor, name, None)
    if isinstance(method, property):
        return lambda x: getattr(x, name)
    if callable(method):
        return _by_name(method, arguments)
    return None


def _by_name(function: Function, arguments: Sequence[str]) -> Function:
    try:
        known = dict(inspect.signature(function).parameters)
    except ValueError:
        known = {}
    later = arguments[1:]
    first = next(iter(known.values()), None)
    if first is not None and first.kind is first.VAR_POSITIONAL and "tensors" in arguments[:1]:
        return lambda tensors, *args, **kwargs: function(*tensors, *args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        names = later[: len(args) - 1]
        given = dict(zip(names, args[1:])) if all(n in known for n in names) else None
        if given is None and any(n in known and list(known).index(n) != k for k, n in enumerate(names, 1)):
            raise TypeError(f"{function.__name__} has other arguments than ATen's {', '.join(arguments)}")
        kwargs = kwargs if given is None else given | kwargs
        if type(kwargs.get("reduction")) is int:
            kwargs["reduction"] = REDUCTIONS[kwargs["reduction"]]
        if "dtype" in kwargs:
            kwargs["dtype"] = as_dtype(kwargs["dtype"])
        return function(*args, **kwargs) if given is None else function(*args[:1], **kwargs)

    return call


def as_dtype(dtype: Any) -> Any:
    """``torch.float32`` as ours; anything else as it is."""
    text = str(dtype)
    return (
        getattr(lz, text.removeprefix("torch."))
        if text.startswith("torch.") and hasattr(dtype, "is_floating_point")
        else dtype
    )


@aten("sym_numel")
def _sym_numel(x: Tensor) -> int:
    return prod(x.shape)


@aten("sym_size")
def _sym_size(x: Tensor, axis: int) -> int:
    return x.shape[axis]


@aten("alias", "lift_fresh_copy", "lift_fresh")
def _same(x: Tensor) -> Tensor:
    return x


@aten("detach", "detach_")
def _detach(x: Tensor) -> Tensor:
    return x.detach()


@aten("contiguous", "clone")
def _clone(x: Tensor, memory_format: Any = None) -> Tensor:
    return x.clone()


@aten(
    "_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range_for_size", "sym_constrain_range"
)
def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


@aten("batch_norm")
def _batch_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Tensor:
    return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)


@aten("layer_norm")
def _layer_norm(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> Tensor:
    return F.layer_norm(x, tuple(shape), weight, bias, eps)


@aten("group_norm")
def _group_norm(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = False
) -> Tensor:
    return F.group_norm(x, groups, weight, bias, eps)


@aten("instance_norm")
def _instance_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Tensor:
    return F.instance_norm(x, mean, var, weight, bias, use_input_stats, momentum, eps)


@aten("embedding")
def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Tensor:
    return F.embedding(indices, weight, None if padding_idx == -1 else padding_idx)


@aten("scaled_dot_product_attention")
def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@aten("dropout", "feature_dropout")
def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return F.dropout(x, p, train)


@aten("to", "_to_copy")
def _to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    for a in (*args, kwargs.get("dtype")):
        if str(a).startswith("torch.") and hasattr(a, "is_floating_point"):
            return x.to(as_dtype(a))
    return x


@aten("expand")
def _expand(x: Tensor, size: Any, implicit: bool = False) -> Tensor:
    return x.expand(*size)


@aten("view", "reshape", "_unsafe_view")
def _reshape(x: Tensor, size: Any) -> Tensor:
    return lz.reshape(x, tuple(size))


@aten("permute")
def _permute(x: Tensor, dims: Any) -> Tensor:
    return lz.permute(x, tuple(dims))


@aten("slice")
def _slice(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    index = [slice(None)] * x.ndim
    index[dim] = slice(start, None if isinstance(end, int) and end >= 1 << 62 else end, step)
    return x[tuple(index)]


@aten("index")
def _index(x: Tensor, indices: Any) -> Tensor:
    return x[tuple(slice(None) if i is None else i for i in indices)]


@aten("add", "add_")
def _add(a: Any, b: Any, alpha: Any = 1) -> Tensor:
    return a + (b if alpha == 1 else b * alpha)


@aten("sub", "sub_")
def _sub(a: Any, b: Any, alpha: Any = 1) -> Tensor:
    return a - (b if alpha == 1 else b * alpha)


@aten("rsub")
def _rsub(a: Any, b: Any, alpha: Any = 1) -> Tensor:
    return b - (a if alpha == 1 else a * alpha)


def _created(f: Function) -> Function:
    def make(
        *args: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, **kwargs: Any
    ) -> Tensor:
        return f(*args, dtype=as_dtype(dtype), **kwargs)

    return make


for _name in (
    "arange",
    "full",
    "zeros",
    "ones",
    "zeros_like",
    "ones_like",
    "full_like",
    "scalar_tensor",
    "empty",
    "linspace",
    "eye",
):
    OPERATIONS[_name] = _created(getattr(lz, _name))


@aten("new_zeros")
def _new_zeros(x: Tensor, size: Any, dtype: Any = None, **_: Any) -> Tensor:
    return lz.zeros(tuple(size), dtype=as_dtype(dtype) or x.dtype)


@aten("new_ones")
def _new_ones(x: Tensor, size: Any, dtype: Any = None, **_: Any) -> Tensor:
    return lz.ones(tuple(size), dtype=as_dtype(dtype) or x.dtype)


@aten("new_full")
def _new_full(x: Tensor, size: Any, value: Any, dtype: Any = None, **_: Any) -> Tensor:
    return lz.full(tuple(size), value, dtype=as_dtype(dtype) or x.dtype)


def _with_dtype(name: str) -> Function:
    plain = getattr(lz, name)

    def call(x: Tensor, *args: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
        return plain(x, *args, **kwargs) if dtype is None else plain(x.to(as_dtype(dtype)), *args, **kwargs)

    return call


for _name in ("sum", "mean", "prod", "cumsum", "cumprod"):
    OPERATIONS[_name] = _with_dtype(_name)


@aten("softmax", "_softmax")
def _softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return F.softmax(x if not str(dtype).startswith("torch.") else x.to(as_dtype(dtype)), dim)


@aten("log_softmax", "_log_softmax")
def _log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return F.log_softmax(x if not str(dtype).startswith("torch.") else x.to(as_dtype(dtype)), dim)


@aten("convolution", "_convolution")
def _convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
    *_: Any,
) -> Tensor:  # fmt: skip
    n = x.ndim - 2
    if transposed:
        f = getattr(F, f"conv_transpose{n}d")
        return f(x, weight, bias, tuple(stride), tuple(padding), tuple(output_padding), groups, tuple(dilation))
    return getattr(F, f"conv{n}d")(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups)


@aten("_weight_norm")
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    axes = tuple(k for k in range(v.ndim) if k != dim % v.ndim)
    return v * (g / v.square().sum(axes, keepdim=True).sqrt())


@aten("embedding_bag")
def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    return (
        F.embedding_bag(
            indices,
            weight,
            offsets,
            mode=("sum", "mean", "max")[mode],
            per_sample_weights=per_sample_weights,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        ),
        *(None, None, None),  # what PyTorch's gradient needs
    )


for _name, _mode in {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}.items():
    OPERATIONS[_name], OPERATIONS[f"{_name}_cell"] = layers_of(_mode), cell_of(_mode)


@aten("numpy_T")
def _transposed(x: Tensor) -> Tensor:
    return x.permute(*reversed(range(x.ndim)))


@aten("einsum")
def _einsum(equation: str, tensors: Any, path: Any = None) -> Tensor:
    return lz.einsum(equation, *tensors)


@aten("constant_pad_nd")
def _constant_pad(x: Tensor, widths: Any, value: Any = 0) -> Tensor:
    return F.pad(x, tuple(widths), value=value)


@aten("special_expit")
def _expit(x: Tensor) -> Tensor:
    return lz.sigmoid(x)


@aten("hann_window")
def _hann_window(n: int, periodic: bool = True, **more: Any) -> Tensor:
    at = lz.arange(n, dtype=as_dtype(more.get("dtype")) or lz.float32)
    return 0.5 - 0.5 * lz.cos(at * (2 * pi / (n if periodic else n - 1)))


@aten("matrix_H")
def _conjugate_transposed(x: Tensor) -> Tensor:
    return x.mH


@aten("unfold")
def _windows(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    return x.unfold(dim, size, step)


@aten("tensordot")
def _tensordot(a: Tensor, b: Tensor, dims_a: Any, dims_b: Any) -> Tensor:
    return lz.tensordot(a, b, (list(dims_a), list(dims_b)))


@aten("stft")
def _stft(
    x: Tensor, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, normalized: bool = False,
    onesided: Any = None, return_complex: Any = None, align_to_window: Any = None,
) -> Tensor:  # fmt: skip
    return lz.stft(
        x,
        n_fft,
        hop_length,
        win_length,
        window,
        center=False,  # the padding is an operation of its own
        normalized=normalized,
        onesided=onesided,
        return_complex=return_complex,
    )
