"""Names that users bring from PyTorch and NumPy."""

import importlib
import subprocess
import sys
import traceback

import ml_dtypes
import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "var", "std", "logsumexp", "norm"])
def test_reductions_take_axis_and_keepdims(name):
    x = lz.rand(3, 4)
    wanted = getattr(x, name)(dim=1, keepdim=True).numpy()
    assert np.array_equal(getattr(x, name)(axis=1, keepdims=True).numpy(), wanted)
    assert np.array_equal(getattr(lz, name)(x, axis=1, keepdims=True).numpy(), wanted)


def test_joining_takes_axis_and_promotes():
    x = lz.arange(6).reshape(2, 3)
    joined = lz.cat([x, x.to(lz.float64)], axis=1)
    assert joined.dtype is lz.float64
    assert np.array_equal(joined.numpy(), np.concatenate([x.numpy(), x.numpy().astype(float)], axis=1))
    assert np.array_equal(lz.stack([x, x], axis=2).numpy(), np.stack([x.numpy(), x.numpy()], axis=2))


def test_an_axis_given_twice_is_refused():
    with pytest.raises(TypeError):
        lz.ones(2, 2).sum(0, axis=1)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_of_floating_dtypes(name):
    found, wanted = lz.finfo(getattr(lz, name)), ml_dtypes.finfo(name)
    assert (found.bits, found.eps, found.max, found.min) == (
        wanted.bits, float(wanted.eps), float(wanted.max), float(wanted.min),
    )  # fmt: skip
    with pytest.raises(TypeError, match="finfo is for floating"):
        lz.iinfo(name)


def test_limits_of_integer_dtypes():
    assert (lz.iinfo(lz.int8).min, lz.iinfo(lz.uint16).max) == (-128, 65535)
    with pytest.raises(TypeError, match="iinfo is for integers"):
        lz.finfo(lz.int32)


def test_dtypes_named_like_pythons_types():
    assert (lz.float, lz.int, lz.bool, lz.long) == (lz.float32, lz.int32, lz.bool_, lz.int64)


def test_result_types():
    x = lz.ones(2, dtype=lz.int8)
    assert lz.result_type(x, 1) is lz.int8
    assert lz.result_type(x, 1.5) is lz.float32
    assert lz.result_type(x, lz.tensor(1.0, dtype=lz.float64)) is lz.float64
    assert lz.promote_types(lz.float16, lz.bfloat16) is lz.float32


def test_random_numbers_of_given_distributions():
    lz.manual_seed(0)
    n = lz.normal(3.0, 0.5, (4000,)).numpy()
    assert abs(n.mean() - 3) < 0.05 and abs(n.std() - 0.5) < 0.05
    assert lz.normal(lz.zeros(3, 1), lz.ones(4)).shape == (3, 4)
    assert lz.bernoulli(lz.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]


def test_arrangements_match_numpy():
    a, b = np.arange(3.0), np.arange(3.0) + 5
    x, y = lz.tensor(a), lz.tensor(b)
    assert np.array_equal(lz.column_stack([x, y]).numpy(), np.column_stack([a, b]))
    assert np.array_equal(lz.dstack([x, y]).numpy(), np.dstack([a, b]))
    np.testing.assert_allclose(lz.logspace(0, 2, 5, dtype=lz.float64).numpy(), np.logspace(0, 2, 5), rtol=1e-12)


@pytest.mark.parametrize("name", ["mps", "compile", "utils", "distributed", "FloatTensor"])
def test_what_has_another_name_here_is_pointed_to(name):
    assert not hasattr(lz, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(lz, name)


def test_a_tensor_as_a_tensor_is_itself_and_keeps_its_gradient():
    for package in (lz, torch):
        x = package.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        assert package.as_tensor(x) is x and package.asarray(x) is x
        assert package.as_tensor(y, dtype=package.float32, device="cpu") is y
        wide = package.as_tensor(y, dtype=package.float64)
        assert wide.dtype == package.float64
        wide.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), [2, 4])
        assert package.as_tensor([1, 2], dtype=package.float32).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="no device 'cuda'"):
        lz.as_tensor(lz.ones(2), device="cuda")


def test_an_optimizer_of_a_module_asks_for_its_parameters():
    with pytest.raises(TypeError, match=r"Adam: .* got a Linear; pass model\.parameters\(\)"):
        optim.Adam(nn.Linear(2, 2))


def test_a_summary_of_a_shape_asks_for_a_tensor():
    with pytest.raises(TypeError, match=r"give lz\.zeros"):
        nn.utils.summary(nn.Linear(2, 2), (1, 2))


def test_a_warning_names_the_line_of_the_user():
    with pytest.warns(UserWarning, match="broadcast") as seen:
        nn.MSELoss()(lz.randn(3, 1), lz.randn(3))
    assert seen[0].filename == __file__


def test_a_loop_over_slices_is_planned_once():
    data, weight = lz.tensor(np.arange(400.0).reshape(100, 4)), lz.tensor(np.ones((4, 2)))
    results = []
    for i in range(0, 100, 10):
        results.append((data[i : i + 10] @ weight).sum().item())
        if i == 10:
            planned = lz.runtime.stats()["plans_built"]
    assert lz.runtime.stats()["plans_built"] == planned
    np.testing.assert_allclose(results, 2 * np.arange(400.0).reshape(10, 40).sum(1))


def test_a_slice_that_has_a_value_is_still_a_view():
    x = lz.tensor([0.0, 1, 2, 3, 4, 5])
    part, inner = x[1:4], x[1:4][1:]
    x.zero_()
    assert part.tolist() == [0, 0, 0] and inner.tolist() == [0, 0]
    part[0] = 7
    inner.fill_(3)
    assert x.tolist() == [0, 7, 3, 3, 0, 0] and part.tolist() == [7, 3, 3]
    x[::2] = 9
    assert part.tolist() == [7, 9, 3] and inner.tolist() == [9, 3]


PARTS = {
    "slice": lambda x, i: x[i : i + 10],
    "narrow": lambda x, i: x.narrow(0, i, 10),
    "select": lambda x, i: x.select(0, i),
    "int": lambda x, i: x[i],
    "ints": lambda x, i: x[i, i % 4],
    "column": lambda x, i: x[:, i % 4],
    "split": lambda x, i: x.split(10)[i // 10],
    "chunk": lambda x, i: x.chunk(10)[i // 10],
    "tensor_split": lambda x, i: x.tensor_split(10)[i // 10],
    "unbind": lambda x, i: x.unbind(0)[i],
    "iteration": lambda x, i: list(x)[i],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_data_are_planned_and_compiled_once_wherever_they_begin(name):
    array = np.arange(400.0).reshape(100, 4) + len(name)
    data, take = lz.tensor(array), PARTS[name]
    for i in range(0, 100, 10):
        assert (take(data, i) * 2).sum().item() == pytest.approx(2 * np.sum(take_array(name, array, i)))
        stats = lz.runtime.stats()
        counts = stats["plans_built"], stats["kernels_compiled"] + stats["kernels_from_disk"]
        if i == 10:
            planned = counts
    assert counts == planned


def take_array(name, array, i):
    if name in ("slice", "narrow", "split", "chunk", "tensor_split"):
        return array[i : i + 10]
    return array[:, i % 4] if name == "column" else array[i, i % 4] if name == "ints" else array[i]


def test_elements_taken_at_once_are_views():
    x = lz.tensor(np.arange(6.0).reshape(2, 3))
    row, (first, second), corner = x[1], x.unbind(0), x[0, 2]
    row.fill_(7)
    corner.zero_()
    assert x.tolist() == [[0, 1, 0], [7, 7, 7]] and first.tolist() == [0, 1, 0] and second.tolist() == [7, 7, 7]
    first[1] = 9
    assert x.tolist() == [[0, 9, 0], [7, 7, 7]] and corner.item() == 0


# -- place and memory -------------------------------------------------------------------------------------------------


def test_devices_have_a_type_and_an_index():
    x = lz.ones(2, 3)
    assert x.device == "cpu" == lz.device("cpu") and x.device.type == "cpu" and x.device.index is None
    assert (
        isinstance(x.device, lz.device) and isinstance((x + 1).device, lz.device) and not isinstance("cpu", lz.device)
    )
    assert lz.device("cuda:1") == lz.device("cuda", 1) and lz.device("cuda:1").index == 1
    assert repr(lz.device("cpu")) == "device('cpu')" and f"{x.device}" == "cpu"
    assert x.to(lz.device("cpu")) is x and lz.zeros_like(x, device=x.device).device.type == "cpu"
    assert nn.Linear(2, 2).to(lz.device("cpu")).weight.is_cpu
    with pytest.raises(ValueError, match="no device"):
        x.to(lz.device("cuda"))
    with pytest.raises(ValueError, match="a name such as"):
        lz.device("my device")


def test_strides_are_those_of_row_major_order():
    x = lz.ones(2, 3, 4)
    assert x.stride() == (12, 4, 1) and x.stride(1) == 4 and lz.ones(()).stride() == () and x.is_contiguous()
    assert x.transpose(0, 2).stride() == (6, 2, 1) and lz.ones(0, 3).stride() == torch.ones(0, 3).stride()
    assert (x.numel(), x.element_size(), x.nbytes, x.storage_offset(), x.get_device()) == (24, 4, 96, 0, -1)
    assert not (x.is_cuda or x.is_sparse or x.is_quantized or x.is_meta)


def test_what_a_gradient_comes_from_is_named():
    w = nn.Parameter(lz.ones(3))
    y = w * 2
    assert w.grad_fn is None and y.grad_fn.operation == "mul" and lz.ones(3).grad_fn is None and not y.retains_grad
    y.retain_grad()
    y.realize()
    assert y.grad_fn.operation == "mul" and y.retains_grad
    y.sum().backward()
    assert y.detach().grad_fn is None


def test_tensors_made_like_others():
    x = lz.ones(2, 3, dtype=lz.float64)
    for made in (
        x.new_zeros(2, device="cpu"), x.new_ones((2,)), x.new_full((2,), 3), x.new_tensor([1, 2]), lz.rand_like(x, device="cpu"),
        lz.full_like(x, 2, device="cpu"), lz.randint_like(x, 5),
    ):  # fmt: skip
        assert made.dtype is lz.float64
    assert x.new_zeros(2, requires_grad=True).requires_grad and x.new_tensor([1], dtype=lz.int64).dtype is lz.int64
    assert x.long().type_as(x).dtype is lz.float64 and x.long().to(x).dtype is lz.float64
    assert sorted(lz.randperm(5, device="cpu").tolist()) == [0, 1, 2, 3, 4]


def test_data_shares_the_value_and_leaves_gradients_alone():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    assert not w.data.requires_grad
    w.data.mul_(2)
    w.data[0] = 7
    assert w.tolist() == [7, 4] and w.requires_grad
    w.data = lz.tensor([5.0, 6.0])
    assert w.tolist() == [5, 6]


@pytest.mark.parametrize("name", [
    "cuda", "resize_", "data_ptr", "storage", "as_strided", "apply_", "symeig", "hash_tensor", "pin_memory",
])  # fmt: skip
def test_methods_that_mean_nothing_here_say_what_to_use(name):
    x = lz.ones(2)
    assert not hasattr(x, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(x, name)


@pytest.mark.parametrize("name", ["vmap", "set_default_device", "distributed", "embedding"])
def test_functions_that_are_elsewhere_say_so(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(lz, name)


def test_random_numbers_written_in_place():
    lz.manual_seed(0)
    n = 20000
    assert lz.zeros(n).log_normal_(0.5, 0.3).log().mean().item() == pytest.approx(0.5, abs=0.02)
    assert (
        lz.zeros(n).geometric_(0.25).mean().item() == pytest.approx(4, rel=0.05)
        and lz.zeros(n).geometric_(0.5).min() == 1
    )
    assert lz.zeros(n).cauchy_(3).median().item() == pytest.approx(3, abs=0.1)
    drawn = lz.zeros(n).random_(2, 5)
    assert drawn.dtype is lz.float32 and sorted(set(drawn.tolist())) == [2, 3, 4]


# -- functions, against PyTorch ---------------------------------------------------------------------------------------

# name: (a call, shapes or arrays of its tensors); the same call is made with either library
CALLS = {
    "select_scatter": (lambda m, x, y: m.select_scatter(x, y, 1, -1), (3, 4), (3,)),
    "slice_scatter": (lambda m, x, y: m.slice_scatter(x, y, 1, 0, 4, 2), (3, 4), (3, 2)),
    "diagonal_scatter": (lambda m, x, y: m.diagonal_scatter(x, y, 1), (3, 4), (3,)),
    "diagonal_scatter below": (lambda m, x, y: m.diagonal_scatter(x, y, -1), (3, 4), (2,)),
    "scatter_reduce": (lambda m, x, i, y: x.scatter_reduce(0, i, y, "sum"), (4,), np.array([0, 1, 1]), (3,)),
    "scatter_reduce mean": (lambda m, x, i, y: x.scatter_reduce(0, i, y, "mean"), (4,), np.array([0, 1, 1]), (3,)),
    "scatter_reduce new": (
        lambda m, x, i, y: x.scatter_reduce(0, i, y, "mean", include_self=False), (4,), np.array([0, 1, 1]), (3,),
    ),
    "cartesian_prod": (lambda m, x, y: m.cartesian_prod(x, y), (3,), (2,)),
    "combinations": (lambda m, x: m.combinations(x, 3), (5,)),
    "combinations again": (lambda m, x: m.combinations(x, with_replacement=True), (3,)),
    "atleast_1d": (lambda m, x: m.atleast_1d(x), ()),
    "atleast_2d": (lambda m, x: m.atleast_2d(x), (3,)),
    "atleast_3d": (lambda m, x: m.atleast_3d(x), (3, 2)),
    "dsplit": (lambda m, x: m.dsplit(x, 2)[1], (2, 3, 4)),
    "narrow_copy": (lambda m, x: x.narrow_copy(1, 1, 2), (2, 3)),
    "unique_consecutive": (lambda m, i: m.unique_consecutive(i, True, True)[0], np.array([1, 1, 2, 2, 1])),
    "unique_consecutive places": (lambda m, i: m.unique_consecutive(i, True, True)[1], np.array([1, 1, 2, 2, 1])),
    "unique_consecutive counts": (lambda m, i: m.unique_consecutive(i, True, True)[2], np.array([1, 1, 2, 2, 1])),
    "unique_consecutive rows": (lambda m, i: m.unique_consecutive(i, dim=0), np.array([[1, 2], [1, 2], [3, 2]])),
    "isin": (lambda m, i, j: m.isin(i, j), np.array([[1, 2], [3, 4]]), np.array([2, 3, 9])),
    "isin inverted": (lambda m, i, j: m.isin(i, j, invert=True), np.array([1, 2]), np.array([2])),
    "tril_indices": (lambda m: m.tril_indices(3, 4, 1),),
    "triu_indices": (lambda m: m.triu_indices(3, 4, -1),),
    "unravel_index": (lambda m, i: m.unravel_index(i, (3, 4))[0], np.array([5, 11])),
    "cov": (lambda m, x: m.cov(x), (3, 6)),
    "cov of one": (lambda m, x: m.cov(x), (6,)),
    "corrcoef": (lambda m, x: m.corrcoef(x), (3, 6)),
    "histc": (lambda m, x: m.histc(x.detach(), 5), (40,)),
    "histc of a range": (lambda m, x: m.histc(x.detach(), 5, -1, 1), (40,)),
    "renorm": (lambda m, x: x.renorm(2, 0, 1.0), (3, 4)),
    "trapezoid": (lambda m, x: m.trapezoid(x, dx=0.5), (3, 4)),
    "trapezoid at": (lambda m, y, x: m.trapezoid(y, x, dim=0), (4, 3), (4,)),
    "cumulative_trapezoid": (lambda m, y, x: m.cumulative_trapezoid(y, x), (3, 4), (3, 4)),
    "matrix_power": (lambda m, x: x.matrix_power(5), (2, 3, 3)),
    "matrix_power 0": (lambda m, x: x.detach().matrix_power(0), (3, 3)),
    "chain_matmul": (lambda m, x, y, z: m.chain_matmul(x, y, z), (2, 5), (5, 3), (3, 4)),
    "vander": (lambda m, x: m.vander(x.detach(), 4), (3,)),
    "vander increasing": (lambda m, x: m.vander(x.detach(), increasing=True), (3,)),
    "complex": (lambda m, x, y: m.view_as_real(m.complex(x, y) * m.complex(y, x)), (3,), (3,)),
    "polar": (lambda m, x, y: m.view_as_real(m.polar(x.abs(), y)), (3,), (3,)),
    "view_as_complex": (lambda m, x: m.view_as_complex(x).abs(), (3, 2)),
    "hann_window": (lambda m: m.hann_window(7),),
    "hamming_window": (lambda m: m.hamming_window(8, False),),
    "blackman_window": (lambda m: m.blackman_window(7, periodic=False),),
    "bartlett_window": (lambda m: m.bartlett_window(7),),
    "bartlett_window closed": (lambda m: m.bartlett_window(8, False),),
    "rsub": (lambda m, x, y: m.rsub(x, y, alpha=2), (3,), (3,)),
    "clone": (lambda m, x: m.clone(x), (3,)),
    "fill_diagonal_": (lambda m, x: (x * 1).fill_diagonal_(2), (3, 4)),
    "pixel_shuffle": (lambda m, x: m.pixel_shuffle(x, 2), (2, 8, 3, 3)),
    "pixel_unshuffle": (lambda m, x: m.pixel_unshuffle(x, 2), (2, 4, 6)),
    "channel_shuffle": (lambda m, x: m.nn.functional.channel_shuffle(x, 2), (2, 6, 3, 3)),
    "layer_norm": (lambda m, x: m.layer_norm(x, (4,)), (3, 4)),
    "conv2d": (lambda m, x, w: m.conv2d(x, w, padding=1), (2, 3, 5, 5), (4, 3, 3, 3)),
    "cosine_similarity": (lambda m, x, y: m.cosine_similarity(x, y), (3, 4), (3, 4)),
    "hinge_embedding_loss": (lambda m, x: m.nn.functional.hinge_embedding_loss(x, m.tensor([1, -1, -1])), (3,)),
    "soft_margin_loss": (lambda m, x: m.nn.functional.soft_margin_loss(x, m.tensor([1.0, -1, -1])), (3,)),
    "multilabel_soft_margin_loss": (
        lambda m, x: m.nn.functional.multilabel_soft_margin_loss(x, m.tensor([[1.0, 0, 1], [0, 0, 1]])), (2, 3),
    ),
    "multi_margin_loss": (lambda m, x: m.nn.functional.multi_margin_loss(x, m.tensor([0, 2])), (2, 3)),
    "multi_margin_loss squared": (
        lambda m, x: m.nn.functional.multi_margin_loss(x, m.tensor([0, 2]), p=2, weight=m.tensor([1.0, 2, 3])), (2, 3),
    ),
    "poisson_nll_loss": (lambda m, x: m.nn.functional.poisson_nll_loss(x, m.tensor([0.0, 1, 5]), full=True), (3,)),
    "poisson_nll_loss of rates": (
        lambda m, x: m.nn.functional.poisson_nll_loss(x.abs(), m.tensor([0.0, 1, 5]), log_input=False), (3,),
    ),
}  # fmt: skip


def _made(spec, rng):
    return spec if isinstance(spec, np.ndarray) else rng.standard_normal(spec).astype("f4")


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_pytorchs(name):
    call, *specs = CALLS[name]
    rng = np.random.default_rng(0)
    arrays = [_made(s, rng) for s in specs]
    theirs = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    ours = [lz.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wanted, found = call(torch, *theirs), call(lz, *ours)
    assert str(found.dtype).split(".")[-1] == str(wanted.dtype).split(".")[-1]
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=2e-5, atol=2e-6)
    if wanted.requires_grad:
        weights = rng.standard_normal(wanted.shape).astype("f4")
        (wanted * torch.tensor(weights)).sum().backward()
        (found * lz.tensor(weights)).sum().backward()
        for t, o in zip(theirs, ours):
            if t.grad is not None:
                np.testing.assert_allclose(o.grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_shapes_broadcast_like_pytorchs():
    assert lz.broadcast_shapes((2, 1), (3,), 1) == (2, 3)
    assert [t.shape for t in lz.atleast_2d(lz.ones(()), lz.ones(2))] == [(1, 1), (1, 2)]
    assert lz.scalar_tensor(2).dtype is lz.float32


def test_layers_of_shuffles():
    x = lz.rand(2, 8, 3, 3)
    assert np.array_equal(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x)).numpy(), x.numpy())
    assert nn.ChannelShuffle(2)(x).shape == x.shape and "upscale_factor=2" in repr(nn.PixelShuffle(2))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 31])
def test_the_median_and_quantiles_of_what_has_nan_are_nan(n):
    x = np.random.default_rng(0).normal(size=(4, n)).astype(np.float32)
    x[1, n // 2] = np.nan
    ours, theirs = lz.tensor(x), torch.tensor(x)
    assert np.isnan(ours.median().item())
    for dim in (0, 1):
        for got, expected in zip(ours.median(dim), theirs.median(dim)):
            np.testing.assert_array_equal(got.numpy(), expected.numpy())
        np.testing.assert_allclose(ours.quantile(0.3, dim).numpy(), theirs.quantile(0.3, dim).numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        ("lezero", "Float32", "lezero.float32"),
        ("lezero", "zeroes", "lezero.zeros"),
        ("lezero", "Linear", "lezero.nn.Linear"),
        ("lezero.nn", "Conv2D", "lezero.nn.Conv2d"),
        ("lezero.nn", "conv2d", "lezero.nn.functional.conv2d or lezero.nn.Conv2d"),
        ("lezero.nn.functional", "soft_max", "lezero.nn.functional.softmax"),
        ("lezero.nn.init", "xavier_uniform", "lezero.nn.init.xavier_uniform_"),
        ("lezero.nn.utils", "clip_grad_norm", "lezero.nn.utils.clip_grad_norm_"),
        ("lezero.optim", "adamw", "lezero.optim.AdamW"),
        ("lezero.optim", "StepLR", "lezero.optim.lr_scheduler.StepLR"),
        ("lezero.optim.lr_scheduler", "CosineAnealingLR", "lezero.optim.lr_scheduler.CosineAnnealingLR"),
        ("lezero.data", "Dataloader", "lezero.data.DataLoader"),
        ("lezero.data.datasets", "Mnist", "lezero.data.datasets.MNIST"),
        ("lezero.io", "laod", "lezero.io.load"),
        ("lezero.models", "ResNet18", "lezero.models.resnet18"),
        ("lezero.trainer", "earlystopping", "lezero.trainer.EarlyStopping"),
        ("lezero.autograd", "gradchek", "lezero.autograd.gradcheck or lezero.autograd.gradgradcheck"),
        ("lezero.profiler", "Profile", "lezero.profiler.profile"),
    ],
)
def test_misspelt_names_say_what_was_probably_meant(module, name, meant):
    found = importlib.import_module(module)
    with pytest.raises(AttributeError) as caught:
        getattr(found, name)
    assert str(caught.value) == f"module {module!r} has no attribute {name!r}: did you mean {meant}?"
    # once: Python would add a suggestion of its own to an error that carries the object
    assert "".join(traceback.format_exception_only(caught.value)).lower().count("did you mean") == 1


def test_every_public_package_suggests_names():
    for name in lz.misspelt.PACKAGES:
        with pytest.raises(AttributeError, match=r"has no attribute 'qwxyz'$"):
            _ = importlib.import_module(name).qwxyz


def test_a_file_called_in_place_of_its_class_says_so():
    with pytest.raises(TypeError, match=r"lezero\.optim\.adam is a module: did you mean lezero\.optim\.Adam\?"):
        optim.adam([])
    with pytest.raises(TypeError, match=r"did you mean lezero\.nn\.functional\.linear or lezero\.nn\.Linear\?"):
        nn.linear(3, 4)


def test_suggestions_cost_nothing_before_they_are_needed():
    code = "import sys, lezero, lezero.nn, lezero.optim, lezero.data, lezero.trainer, lezero.models; print('difflib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


TRAINING = [lz.nn, lz.optim, lz.optim.lr_scheduler, lz.data, lz.trainer]


@pytest.mark.parametrize("module", TRAINING, ids=lambda m: m.__name__)
def test_every_class_names_itself_for_an_argument_it_does_not_have(module):
    found = [getattr(module, name) for name in module.__all__]
    classes = [c for c in found if isinstance(c, type) and issubclass(c, lz.misspelt.SpeltArguments)]
    assert classes
    for cls in classes:
        if cls is lz.nn.Identity:  # takes what stands in its place, as PyTorch's
            continue
        with pytest.raises(TypeError, match=rf"^{cls.__name__}: there is no argument 'qwxyz': it takes "):
            cls(qwxyz=1)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: lz.nn.Conv2d(1, 1, 3, paddding=1), "Conv2d: there is no argument 'paddding': did you mean 'padding'?"),
        (lambda: lz.nn.LeakyReLU(negativ_slope=1), "LeakyReLU: there is no argument 'negativ_slope': did you mean 'negative_slope'?"),
        (lambda: lz.optim.SGD([], nestrov=True), "SGD: there is no argument 'nestrov': did you mean 'nesterov'?"),
    ],
)  # fmt: skip
def test_misspelt_arguments_say_what_was_probably_meant(make, said):
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == said
