"""What programs do with free extents of images and sequences, in ONNX files run at other sizes than the example's."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.export import Dim, ExportError, to_onnx

onnx = pytest.importorskip("onnx", reason="writing ONNX needs the onnx package")
runtime = pytest.importorskip("onnxruntime", reason="exports are compared with ONNX Runtime")

pytestmark = pytest.mark.usefixtures("nothing_compiled")


def written(program, examples, dims, path, others):
    """Export, and compare the file with the program at other inputs, in ONNX Runtime and read back; the operators."""
    to_onnx(program, tuple(map(lz.tensor, examples)), path, input_names=list(dims), dynamic_shapes=dims)
    session, again = runtime.InferenceSession(str(path)), lz.onnx.load(path).eval()
    for inputs in others:
        want = program(*map(lz.tensor, inputs))
        want = want if isinstance(want, tuple) else (want,)
        back = again(*map(lz.tensor, inputs))
        back = back if isinstance(back, tuple) else (back,)
        got = session.run(None, dict(zip(dims, inputs)))
        for a, b, w in zip(got, back, want, strict=True):
            np.testing.assert_allclose(a, w.detach().numpy(), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(b.detach().numpy(), w.detach().numpy(), rtol=1e-4, atol=1e-5)
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("f4") for shape in shapes]


# -- interpolation ----------------------------------------------------------------------------------------------------

MODES = [
    ("nearest", 1, None), ("nearest", 2, None), ("nearest", 3, None), ("nearest-exact", 2, None), ("linear", 1, False),
    ("bilinear", 2, False), ("bilinear", 2, True), ("bicubic", 2, False), ("bicubic", 2, True), ("trilinear", 3, False),
    ("trilinear", 3, True),
]  # fmt: skip


def resized(scale, mode, *options):
    return lambda x: F.interpolate(x, None, scale, mode, *options)


@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("mode, rank, corners", MODES)
def test_interpolation_by_a_scale(mode, rank, corners, recompute, tmp_path):
    dims = {"x": {0: "batch", **{2 + k: Dim("hwd"[k], min=3) for k in range(rank)}}}
    (example,) = drawn((2, 3, *(7, 6, 5)[:rank]))
    others = [[x] for x in drawn((1, 3, *(4, 9, 6)[:rank]), (3, 3, *(11, 3, 8)[:rank]))]
    for scale in (2, (1 / 3, 1.5, 0.5)[:rank]):
        program = resized(scale, mode, corners, recompute)
        assert "Resize" in written(program, [example], dims, tmp_path / "m.onnx", others)


@pytest.mark.parametrize("scale, mode, least", [(1.25, "bilinear", 4), (2.2, "nearest", 5)])
def test_interpolation_by_a_scale_that_small_extents_do_not_follow(scale, mode, least, tmp_path):
    """Where PyTorch copies, or doubles, although the scale says a little more."""
    (example,) = drawn((2, 3, 7, 6))
    others = [[x] for x in drawn((2, 3, 12, 9), (2, 3, least, 11))]
    program = resized(scale, mode)
    with pytest.raises(ExportError, match=r"(?s)'h' is not free.*test_export_sizes.py, line \d+"):
        written(program, [example], {"x": {2: "h"}}, tmp_path / "m.onnx", [])
    written(program, [example], {"x": {2: Dim("h", min=least), 3: Dim("w", min=least)}}, tmp_path / "m.onnx", others)


def test_scales_whose_sizes_are_rounded_otherwise_are_refused(tmp_path):
    (x,) = drawn((1, 2, 6, 6))
    with pytest.raises(ExportError, match=r"times 0.7 are not rounded down .*size="):
        written(lambda x: F.interpolate(x, scale_factor=0.7), [x], {"x": {2: "h"}}, tmp_path / "m.onnx", [])
    fixed = {"x": {0: "batch"}}  # extents that stay have the size they have
    assert "Resize" not in written(lambda x: F.interpolate(x, scale_factor=0.7), [x], fixed, tmp_path / "m.onnx", [])


@pytest.mark.parametrize("mode, options", [
    ("nearest", {}), ("bilinear", {}), ("bilinear", {"align_corners": True}), ("bicubic", {}), ("area", {}),
    ("bilinear", {"antialias": True}), ("bicubic", {"antialias": True}),
])  # fmt: skip
def test_interpolation_to_another_map_s_size_and_to_a_given_one(mode, options, tmp_path):
    def program(x, other):
        y = F.interpolate(x, size=other.shape[-2:], mode=mode, **options)
        return y * other, F.interpolate(x, size=(5, 4), mode=mode, **options)

    dims = {"x": {2: "h", 3: "w"}, "other": {2: "rows", 3: "columns"}}
    others = [drawn((1, 2, 4, 9), (1, 2, 8, 3)), drawn((1, 2, 12, 5), (1, 2, 5, 16))]
    written(program, drawn((1, 2, 7, 6), (1, 2, 13, 11)), dims, tmp_path / "m.onnx", others)


# -- images -----------------------------------------------------------------------------------------------------------

IMAGE = {"x": {0: "batch", 2: Dim("h", min=9), 3: Dim("w", min=9)}}


def padded(x, mode="constant"):
    return F.pad(x, (0, -x.shape[3] % 8, 0, (8 - x.shape[2] % 8) % 8), mode=mode)


def windows(x):
    """Attention's windows, shifted, of images padded to a multiple; and back."""
    b, c, h, w = x.shape
    y = lz.roll(padded(x), (-3, 2), (2, 3))
    rows, columns = y.shape[2] // 8, y.shape[3] // 8
    y = y.view(b, c, rows, 8, columns, 8).permute(0, 2, 4, 3, 5, 1).reshape(-1, 64, c)
    y = F.softmax(y @ y.mT, -1) @ y
    y = y.view(b, rows, columns, 8, 8, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, rows * 8, columns * 8)
    return lz.roll(y, (3, -2), (2, 3))[..., :h, :w]


def skipped(x):
    """A U-Net's connection: what is half as large comes back to odd extents."""
    small = F.max_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    down, right = x.shape[2] - small.shape[2], x.shape[3] - small.shape[3]
    return lz.cat([x, F.pad(small, (right // 2, right - right // 2, down // 2, down - down // 2))], 1)


def pyramid(x):
    maps = [x, F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 5, 4, 2)]
    for k in (1, 0):
        maps[k] = maps[k] + F.interpolate(maps[k + 1], size=maps[k].shape[-2:])
    context = [F.adaptive_avg_pool2d(x, bins) for bins in (1, 2, (3, 6))]
    return (*maps, lz.cat([F.interpolate(c, size=x.shape[-2:], mode="bilinear") for c in context], 1))


def coordinates(x):
    h, w = x.shape[-2:]
    ys, xs = lz.meshgrid(lz.arange(h), lz.arange(w), indexing="ij")
    return x + lz.linspace(-1, 1, w) + lz.linspace(0, 2, h)[:, None], lz.stack([xs, ys], -1).reshape(-1, 2)


OF_IMAGES = {
    "windows of a padded image": windows, "skip connection of odd extents": skipped, "pyramid": pyramid,
    "coordinates": coordinates, "constants": lambda x: x + lz.linspace(0, 1, 3)[:, None, None],
    **{f"padded to a multiple, {m}": lambda x, m=m: padded(x, m) for m in ("constant", "reflect", "replicate", "circular")},
    **{
        f"borders, {m}": lambda x, m=m: F.pad(x, (1, 2, 3, 4), mode=m) for m in ("reflect", "replicate", "circular")
    },
    "cut borders": lambda x: F.pad(x, (-1, 2, 3, -2), mode="reflect"),
    "adaptive maxima": lambda x: (F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (2, 3))),
    "means of all": lambda x: F.avg_pool2d(x, x.shape[2:]), "maxima of all": lambda x: F.max_pool2d(x, x.shape[2:]),
    "normalised": lambda x: F.layer_norm(x, x.shape[1:]),
    "rounded up": lambda x: F.pad(x, (0, -(-x.shape[3] // 8) * 8 - x.shape[3]))[:, :, : -((7 - x.shape[2]) // 2)],
    "best places": lambda x: x.flatten(1).topk(4, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_of_any_size(name, tmp_path):
    others = [[x] for x in drawn((1, 3, 16, 31), (3, 3, 17, 9))]
    for example in drawn((2, 3, 33, 24), (2, 3, 15, 16)):  # a width that is a multiple, too
        written(OF_IMAGES[name], [example], IMAGE, tmp_path / "m.onnx", others)


def test_an_extent_as_a_kernel_s_size_is_of_one_recording(tmp_path):
    """What is remembered for kernels has no symbols: they are others in the next one."""
    for lead in (1, 2, 3):
        dims = {"x": {k: f"d{k}" for k in range(3 - lead, 4)}}
        written(lambda x: F.max_pool2d(x, x.shape[2:]), drawn((2, 3, 5, 4)), dims, tmp_path / "m.onnx", [])
    y = F.max_pool2d(lz.ones(2, 3, 5, 4), (5, 4))
    assert all(type(n) is int for n in y._node.named_attrs()["kernel"])


# -- sequences --------------------------------------------------------------------------------------------------------

LENGTH = {"x": {0: "batch", 1: Dim("length", min=3)}}


def causal(x):
    n = x.shape[1]
    mask = lz.triu(lz.full((n, n), float("-inf")), diagonal=1)
    near = (lz.arange(n)[None] - lz.arange(n)[:, None]).clamp(-3, 3).float()
    return F.softmax(x @ x.mT + mask + near, -1) @ x


def positions(x):
    _, n, d = x.shape
    angle = lz.arange(n).float()[:, None] / lz.tensor([1.0, 10.0, 100.0, 1000.0])
    waves = lz.stack([angle.sin(), angle.cos()], -1).flatten(1)
    return x + waves + lz.ones(32, d)[:n], x.view(x.shape[0], -1).sum(1) / n


OF_SEQUENCES = {
    "causal": causal, "positions": positions, "sorted": lambda x: x.sort(1), "order": lambda x: x.argsort(1, descending=True),
    "backwards": lambda x: x.index_select(1, lz.arange(x.shape[1] - 1, -1, -1)),
    "products": lambda x: (lz.einsum("bld,bmd->blm", x, x), lz.einsum("bld,ble->bde", x, x)),
    "filled": lambda x: x.index_fill(1, lz.tensor([0, 2]), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_sequences_of_any_length(name, tmp_path):
    others = [[x] for x in drawn((1, 11, 8), (4, 3, 8))]
    written(OF_SEQUENCES[name], drawn((2, 6, 8)), LENGTH, tmp_path / "m.onnx", others)


def test_lengths_as_an_argument(tmp_path):
    def program(x, n):
        rows = lz.arange(x.shape[0])
        there = lz.arange(x.shape[1])[None] < n[:, None]
        return (
            x[rows, n - 1],
            (x * there.unsqueeze(-1)).sum(1) / n.unsqueeze(-1),
            x[:, :1][rows[:, None], n[:, None] * 0],
        )

    dims = {"x": {0: "batch", 1: Dim("length", min=6)}, "n": {0: "batch"}}
    cases = [(2, 6, [6, 2]), (1, 11, [9]), (4, 7, [7, 1, 3, 2])]
    (example, *others) = ([*drawn((b, length, 8)), np.array(n)] for b, length, n in cases)
    written(program, example, dims, tmp_path / "m.onnx", others)


def test_products_whose_second_matrices_lie_either_way(tmp_path):
    """Square, so that nothing but the values says it."""
    (x,) = drawn((2, 4, 4))
    for how in ("bij,bjk->bik", "bij,bkj->bik", "bji,bjk->bik", "bji,bkj->bik"):
        written(lambda a, how=how: lz.einsum(how, a, a), [x], {"a": {0: "n"}}, tmp_path / "m.onnx", [drawn((3, 4, 4))])
