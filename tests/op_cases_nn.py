"""Network operations with drawn inputs to try them on, in the form of ``op_cases``; PyTorch's side is in ``test_ops_nn*``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from op_cases import Case, numbers, seeds, whole

CASES: dict[str, Case] = {}


def add(name: str, order: int = 2, op: str | None = None, frozen: tuple[int, ...] = ()):
    """Register what a function ``f(draw, extent, array)`` returns: (arrays, attributes)."""

    def register(f: Any) -> Any:
        @st.composite
        def drawn(draw):
            def extent(low: int = 1, high: int = 5) -> int:
                return draw(st.integers(low, high))

            def array(*shape: int, low: float = -2, high: float = 2) -> np.ndarray:
                return numbers(shape, draw(seeds), low, high)

            return f(draw, extent, array)

        CASES[name] = Case(op or name, drawn(), None, order, frozen)
        return f

    return register


def one_of(draw: Any, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


# -- products and convolutions --------------------------------------------------------------------------------


@add("dot")
def _(draw, extent, array):
    m, k, n = extent(0), extent(0), extent(0)
    batch = one_of(draw, (), (2,), (2, 3))
    a, b = draw(st.booleans()), draw(st.booleans())
    left, right = ((k, m) if a else (m, k)), ((n, k) if b else (k, n))
    return [array(*batch, *left), array(*batch, *right)], {"trans_a": a, "trans_b": b}


@add("matmul")
def _(draw, extent, array):
    m, k, n = extent(), extent(), extent()
    left, right = one_of(
        draw, *[((m, k), (k, n)), ((2, m, k), (k, n)), ((3, 1, m, k), (2, k, n)), ((k,), (2, k, n)), ((k,), (k,))]
    )
    return [array(*left), array(*right)], {}


@add("linear")
def _(draw, extent, array):
    k, n = extent(), extent()
    lead = one_of(draw, (), (3,), (2, 3), (0,))
    return [array(*lead, k), array(n, k), array(n)][: 2 + draw(st.booleans())], {}


@add("einsum")
def _(draw, extent, array):
    size = dict(zip("abij", [extent() for _ in "abij"]))
    equation = one_of(draw, "ai,ij->aj", "bij,bja->bai", "ij,ij->", "aib,ai->b", "ii,ij->j", "a,b,i->iab", "ij->ji")
    terms = equation.split("->")[0].split(",")
    return [array(*(size[c] for c in term)) for term in terms], {"equation": equation}


def _convolved(draw, extent):
    groups = one_of(draw, 1, 1, 2)
    kernel = extent(1, 3), extent(1, 3)
    dilation = extent(1, 2), extent(1, 2)
    hw = tuple(d * (k - 1) + 1 + extent(0, 4) for k, d in zip(kernel, dilation))
    padding = ((extent(0, 2), extent(0, 2)), (extent(0, 2), extent(0, 2)))
    geometry = {"stride": (extent(1, 3), extent(1, 3)), "padding": padding, "dilation": dilation, "groups": groups}
    n, c, o = extent(0, 2), extent(1, 2) * groups, extent(1, 3) * groups
    out = (
        (h + sum(p) - d * (k - 1) - 1) // s + 1
        for h, p, d, k, s in zip(hw, padding, dilation, kernel, geometry["stride"])
    )
    return (n, c, *hw), (o, c // groups, *kernel), (n, o, *out), geometry


@add("conv2d")
def _(draw, extent, array):
    x, w, _, geometry = _convolved(draw, extent)
    return [array(*x), array(*w)], geometry


@add("conv2d_input_grad")
def _(draw, extent, array):
    x, w, y, geometry = _convolved(draw, extent)
    return [array(*y), array(*w)], {"input_shape": x[2:], **geometry}


@add("conv2d_weight_grad")
def _(draw, extent, array):
    x, w, y, geometry = _convolved(draw, extent)
    return [array(*x), array(*y)], {"kernel": w[2:], **geometry}


@add("convolution")
def _(draw, extent, array):
    x, w, _, geometry = _convolved(draw, extent)
    return [array(*x), array(*w), array(w[0])], geometry


def _resampled(draw, extent):
    mode = one_of(draw, "linear", "corners", "nearest", "nearest-exact")
    n, size = extent(1, 9), extent(1, 9)
    step = n / size
    if mode == "corners":
        step = (n - 1) / (size - 1) if size > 1 else 0.0
    return n, {"axis": 1, "size": size, "mode": mode, "step": step}


@add("resample")
def _(draw, extent, array):
    n, attrs = _resampled(draw, extent)
    return [array(extent(0), n, extent())], attrs


@add("resample_grad")
def _(draw, extent, array):
    n, attrs = _resampled(draw, extent)
    return [array(extent(0), attrs["size"], extent())], {"extent": n, **attrs}


# -- pooling --------------------------------------------------------------------------------------------------


def _pooled(draw, extent, dilated):
    rank = one_of(draw, 1, 2)
    kernel = tuple(extent(1, 3) for _ in range(rank))
    dilation = tuple(extent(1, 2) if dilated else 1 for _ in kernel)
    geometry = {
        "kernel": kernel,
        "stride": tuple(extent(1, 3) for _ in kernel),
        "padding": tuple(extent(0, k // 2) for k in kernel),
        "ceil_mode": draw(st.booleans()),
    }
    spatial = tuple(d * (k - 1) + 1 + extent(0, 5) for k, d in zip(kernel, dilation))
    return (extent(0, 2), 2, *spatial), {**geometry, "dilation": dilation} if dilated else geometry


@add("max_pool")
def _(draw, extent, array):
    shape, geometry = _pooled(draw, extent, True)
    n = int(np.prod(shape))
    return [np.random.default_rng(draw(seeds)).permutation(n).reshape(shape) / 4.0], geometry


@add("max_pool_index", order=0)
def _(draw, extent, array):
    shape, geometry = _pooled(draw, extent, True)
    return [array(*shape)], geometry


@add("avg_pool")
def _(draw, extent, array):
    shape, geometry = _pooled(draw, extent, False)
    counting = {"count_include_pad": draw(st.booleans()), "divisor_override": one_of(draw, None, None, 3)}
    return [array(*shape)], {**geometry, **counting}


@add("adaptive_avg_pool")
def _(draw, extent, array):
    return [array(extent(0), extent(), extent(), extent(1, 8))], {"output": (extent(1, 4), extent(1, 4))}


# -- normalisation and softmax --------------------------------------------------------------------------------


@add("batch_norm")
def _(draw, extent, array):
    shape = one_of(draw, (4, 3), (2, 3, 5), (2, 3, 2, 4))
    return [array(*shape), array(3), array(3)][: extent(1, 3)], {"axis": 1, "eps": 0.1}


@add("batch_norm_inference")
def _(draw, extent, array):
    shape = one_of(draw, (4, 3), (2, 3, 5), (0, 3, 2, 4))
    return [array(*shape), array(3), array(3, low=0.5), array(3), array(3)][: one_of(draw, 3, 5)], {"axis": 1}


@add("batch_mean")
def _(draw, extent, array):
    return [array(extent(2), 3, extent())], {"axis": draw(st.integers(0, 2))}


@add("batch_var")
def _(draw, extent, array):
    return [array(extent(2), 3, extent(2))], {"axis": draw(st.integers(0, 2)), "correction": one_of(draw, 0, 1)}


@add("layer_norm")
def _(draw, extent, array):
    dims, shape = one_of(draw, 1, 2), (extent(0), extent(2), extent(2))
    tail = shape[-dims:]
    return [array(*shape), array(*tail), array(*tail)][: extent(1, 3)], {"dims": dims, "eps": 0.1}


@add("rms_norm")
def _(draw, extent, array):
    shape = (extent(0), extent(), extent())
    return [array(*shape), array(shape[-1])][: extent(1, 2)], {"eps": 0.1}


@add("group_norm")
def _(draw, extent, array):
    return [array(extent(), 4, extent(2), extent()), array(4), array(4)][: extent(1, 3)], {
        "groups": one_of(draw, 1, 2, 4),
        "eps": 0.1,
    }


for _name in ("softmax", "log_softmax"):

    @add(_name)
    def _(draw, extent, array):
        return [array(extent(0), extent(), extent())], {"axis": draw(st.integers(0, 2))}


@add("attention")
def _(draw, extent, array):
    heads = one_of(draw, (), (2,), (2, 3))
    q, k, d, e = extent(), extent(), extent(), extent()
    mask = one_of(draw, None, "bool", "float")
    p = one_of(draw, 0.0, 0.0, 0.5)
    more = [np.int64(draw(seeds)), np.int64(extent(0))] if p else []
    if mask is not None:
        more.append(whole((q, k), draw(seeds), 0, 2) > 0 if mask == "bool" else array(q, k))
    attrs = {"is_causal": draw(st.booleans()), "scale": one_of(draw, None, 0.5), "p": p}
    attrs["blocks"] = draw(st.integers(1, max(1, q)))
    return [array(*heads, q, d), array(*heads, k, d), array(*heads, k, e), *more], attrs


# -- losses, embedding, dropout -------------------------------------------------------------------------------

for _name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "bce_with_logits"):

    @add(_name)
    def _(draw, extent, array):
        shape = one_of(draw, (), (3,), (2, 3))
        return [array(*shape), array(*shape, low=0.125, high=0.75)], {"reduction": one_of(draw, "none", "mean", "sum")}


for _name in ("bce_loss", "kl_div"):

    @add(_name)
    def _(draw, extent, array):
        shape = one_of(draw, (3,), (2, 3))
        x, target = array(*shape, low=0.125, high=0.75), array(*shape, low=0.125, high=0.75)
        return [x, target], {"reduction": one_of(draw, "none", "mean", "sum")}


def _classified(draw, extent, array):
    classes = extent(1, 5)
    lead, rest = (extent(1, 4),), one_of(draw, (), (2,), (2, 3))
    target = whole((*lead, *rest), draw(seeds), 0, classes)
    target.flat[0] = one_of(draw, 0, -100) if target.size > 1 else 0
    weight = [array(classes, low=0.25, high=1)] if draw(st.booleans()) else []
    return [array(*lead, classes, *rest), target, *weight], {"reduction": one_of(draw, "none", "mean", "sum")}


add("nll_loss", frozen=(2,))(_classified)


@add("cross_entropy", frozen=(2,))
def _(draw, extent, array):
    arrays, attrs = _classified(draw, extent, array)
    return arrays, {**attrs, "label_smoothing": one_of(draw, 0.0, 0.125)}


@add("cross_entropy of probabilities", op="cross_entropy")
def _(draw, extent, array):
    shape = extent(), extent(), extent()
    return [array(*shape), array(*shape, low=0.125, high=0.75)], {"label_smoothing": one_of(draw, 0.0, 0.125)}


@add("embedding")
def _(draw, extent, array):
    rows, shape = extent(1, 6), one_of(draw, (), (3,), (2, 3), (0,))
    return [array(rows, extent()), whole(shape, draw(seeds), 0, rows)], {"padding_idx": None}


@add("dropout")
def _(draw, extent, array):
    return [array(extent(0), extent(1, 40)), np.int64(draw(seeds)), np.int64(extent(0))], {
        "p": one_of(draw, 0.0, 0.5, 1.0)
    }


# -- optimizers -----------------------------------------------------------------------------------------------

_ZERO_D = {
    "lr": 0.1,
    "eps": 1e-8,
    "lr_decay": 0.01,
    "weight_decay": 0.01,
    "momentum": 0.9,
    "dampening": 0.1,
    "step": 3.0,
}
_OPTIMIZERS = {
    "sgd_param": "param grad lr weight_decay",
    "sgd_momentum_buffer": "param grad buffer momentum dampening weight_decay step",
    "sgd_momentum_param": "param grad buffer lr momentum weight_decay",
    "adam_m": "param grad m beta1 weight_decay",
    "adam_v": "param grad v beta2 weight_decay",
    "adam_param": "param m v lr beta1 beta2 eps weight_decay step",
    "rmsprop_square": "param grad square alpha weight_decay",
    "rmsprop_mean": "param grad mean alpha weight_decay",
    "rmsprop_buffer": "param grad buffer square mean momentum eps weight_decay",
    "rmsprop_param": "param buffer lr",
    "adagrad_sum": "param grad total weight_decay",
    "adagrad_param": "param grad total lr lr_decay eps weight_decay step",
}
_TENSORS = ("param", "grad", "buffer", "m", "v", "square", "mean", "total")


def _update(operands):
    def drawn(draw, extent, array):
        shape = one_of(draw, (), (7,), (3, 5), (0,))
        arrays = [array(*shape, low=0.25) if x in _TENSORS else np.asarray(_ZERO_D.get(x, 0.9)) for x in operands]
        return arrays, {}

    return drawn


for _name, _operands in _OPTIMIZERS.items():
    add(_name, order=0)(_update(_operands.split()))


@add("update_unless", order=0)
def _update_unless(draw, extent, array):
    shape = one_of(draw, (), (7,), (3, 5), (0,))
    return [array(*shape), array(*shape), np.asarray(one_of(draw, False, True))], {}
