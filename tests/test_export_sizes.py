"""What programs do with free extents of images and sequences, in ONNX files run at other sizes than the example's."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero.export import Dim, ExportError, to_onnx
from lezero.hal.registry import get_backend, set_backend

onnx = pytest.importorskip("onnx", reason="writing ONNX needs the onnx package")
runtime = pytest.importorskip("onnxruntime", reason="exports are compared with ONNX Runtime")


@pytest.fixture(autouse=True)
def nothing_compiled():
    before = get_backend()
    set_backend("numpy")
    yield
    set_backend(before)


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
