"""Resizing, sampling at given places, and regions of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.operators.pooling import along
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, dimension, integers, on_device, on_host, operator
from lezero.ops.resample import resample
from lezero.tensor import Tensor, tensor

# -- resizing: one axis after the other -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """What happens to an axis: `size` elements where there were `extent`; `scale` may differ from their ratio."""

    number: int
    extent: int
    size: int
    scale: float
    crop: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Resizing:
    """The attributes of Resize, with their defaults."""

    antialias: int = 0
    axes: Any = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    def positions(self, a: Axis) -> np.ndarray:
        """Where in the input each element of the output lies."""
        i, last, whole = np.arange(a.size, dtype=np.float64), a.extent - 1, a.scale * a.extent
        match self.coordinate_transformation_mode:
            case "pytorch_half_pixel" if a.size == 1:
                return i * 0
            case "half_pixel" | "pytorch_half_pixel":
                return (i + 0.5) / a.scale - 0.5
            case "half_pixel_symmetric":
                return a.extent / 2 * (1 - a.size / (a.scale * a.extent)) + (i + 0.5) / a.scale - 0.5
            case "align_corners":
                return i * (last / (whole - 1)) if whole != 1 else i * 0
            case "asymmetric":
                return i / a.scale
            case "tf_half_pixel_for_nn":
                return (i + 0.5) / a.scale
            case "tf_crop_and_resize":
                begin, end = a.crop
                if a.size == 1:
                    return i + 0.5 * (begin + end) * last
                return begin * last + i * (end - begin) * last / (whole - 1)
        raise OnnxError(f"coordinate_transformation_mode {self.coordinate_transformation_mode!r} is not known")

    def nearest(self, at: np.ndarray) -> np.ndarray:
        match self.nearest_mode:
            case "round_prefer_floor":
                return np.ceil(at - 0.5)
            case "round_prefer_ceil":
                return np.floor(at + 0.5)
            case "floor":
                return np.floor(at)
            case "ceil":
                return np.ceil(at)
        raise OnnxError(f"nearest_mode {self.nearest_mode!r} is not known")

    def taps(self, a: Axis) -> tuple[np.ndarray, np.ndarray]:
        """(size, taps): which elements an output is made of, and their weights."""
        at = self.positions(a)
        if self.mode == "nearest":
            return np.clip(self.nearest(at), 0, a.extent - 1).astype(np.int64)[:, None], np.ones((a.size, 1))
        shrink = min(1.0, a.scale) if self.antialias else 1.0
        reach = (1 if self.mode == "linear" else 2) / shrink
        first = np.floor(at - reach) + 1
        index = first[:, None] + np.arange(math.ceil(2 * reach))
        weights = self.kernel(np.abs(index - at[:, None]) * shrink)
        if self.exclude_outside:
            weights = weights * ((index >= 0) & (index < a.extent))
        weights = weights / weights.sum(1, keepdims=True)
        return np.clip(index, 0, a.extent - 1).astype(np.int64), weights

    def kernel(self, distance: np.ndarray) -> np.ndarray:
        if self.mode == "linear":
            return np.maximum(0, 1 - distance)
        if self.mode != "cubic":
            raise OnnxError(f"mode {self.mode!r} is not known")
        a, x = self.cubic_coeff_a, distance
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    def along(self, x: Tensor, a: Axis) -> Tensor:
        """`x` with one axis resized."""
        evenly = self.evenly()
        if evenly is not None and (evenly != "corners" or a.scale * a.extent > 1):
            step = (a.extent - 1) / (a.scale * a.extent - 1) if evenly == "corners" else 1 / a.scale
            return resample(x, axis=a.number, size=a.size, mode=evenly, step=float(step))
        index, weights = self.taps(a)
        if index.shape[1] == 1:
            return lz.index_select(x, a.number, tensor(index[:, 0]))
        if index.shape[1] > 4:
            dense = np.zeros((a.extent, a.size))
            np.add.at(dense, (index, np.arange(a.size)[:, None]), weights)
            rows = lz.matmul(lz.movedim(x, a.number, -1), tensor(dense.astype(x.dtype.numpy)))
            return lz.movedim(rows, -1, a.number)
        total: Any = 0
        for t in range(index.shape[1]):
            share = along(tensor(weights[:, t].astype(x.dtype.numpy)), a.number, x.ndim)
            total = total + lz.index_select(x, a.number, tensor(index[:, t])) * share
        return total

    def evenly(self) -> str | None:
        """The mode of ``resample`` that does the same, if one does."""
        if self.antialias or self.exclude_outside:
            return None
        how = (self.mode, self.coordinate_transformation_mode)
        return {
            ("linear", "half_pixel"): "linear",
            ("linear", "align_corners"): "corners",
            ("nearest", "asymmetric"): "nearest" if self.nearest_mode == "floor" else None,
        }.get(how)

    def beyond(self, a: Axis) -> np.ndarray:
        """Which outputs lie outside of the input."""
        at = self.positions(a)
        return (at < 0) | (at > a.extent - 1)


def _resized(x: Tensor, axes: list[Axis], how: Resizing) -> Tensor:
    y = x if x.dtype.is_floating_point or how.mode == "nearest" else x.float()
    for a in axes:
        if a.size != a.extent or a.scale != 1 or how.coordinate_transformation_mode == "tf_crop_and_resize":
            y = how.along(y, a)
    if how.coordinate_transformation_mode == "tf_crop_and_resize":
        for a in axes:
            outside = along(tensor(how.beyond(a)), a.number, x.ndim)
            y = lz.where(outside, how.extrapolation_value, y).to(y.dtype)
    return y if y.dtype is x.dtype else y.to(x.dtype)


def _scaled(x: Tensor, scales: Any, how: Resizing) -> Tensor:
    axes = [Axis(k, int(d), math.floor(float(d) * float(s)), float(s)) for k, (d, s) in enumerate(zip(x.shape, scales))]
    return _resized(x, axes, how)


@operator("Upsample", 7)
def upsample_7(_: Context, x: Tensor, *, scales: list[float], mode: str = "nearest") -> Tensor:
    return _scaled(x, scales, _before_11(mode))


@operator("Upsample", 9, host=True, fixed=(1,))
@operator("Resize", 10, host=True, fixed=(1,))
def resize_10(_: Context, x: Any, scales: Any, *, mode: str = "nearest") -> Tensor:
    return _scaled(on_device(x), on_host(scales), _before_11(mode))


def _before_11(mode: str) -> Resizing:
    mode = "linear" if mode in ("linear", "bilinear") else mode
    return Resizing(mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator("Resize", 11, host=True, fixed=(1, 2, 3))
def resize(_: Context, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, **attributes: Any) -> Tensor:
    how, x = Resizing(**attributes), on_device(x)
    numbers = list(range(x.ndim)) if how.axes is None else [dimension(a, x.ndim) for a in how.axes]
    extents = [int(x.shape[k]) for k in numbers]
    if scales is not None and np.size(on_host(scales)):
        factors = [float(s) for s in on_host(scales)]
        new = [math.floor(d * s) for d, s in zip(extents, factors)]
    else:
        new = [int(n) for n in integers(sizes)]
        factors = [n / d for n, d in zip(new, extents)]
        if how.keep_aspect_ratio_policy != "stretch":
            factor = (min if how.keep_aspect_ratio_policy == "not_larger" else max)(factors)
            factors = [factor] * len(new)
            new = [math.floor(factor * d + 0.5) for d in extents]
    crops = [(0.0, 1.0)] * len(numbers)
    if how.coordinate_transformation_mode == "tf_crop_and_resize":
        corners = [float(v) for v in on_host(roi)]
        crops = list(zip(corners[: len(numbers)], corners[len(numbers) :]))
    return _resized(x, [Axis(*a) for a in zip(numbers, extents, new, factors, crops)], how)


# -- sampling ---------------------------------------------------------------------------------------------------------


@operator("GridSample", 16)
def grid_sample(
    _: Context, x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    values = x if x.dtype.is_floating_point else x.to(grid.dtype)
    return F.grid_sample(values, grid.to(values.dtype), mode, padding_mode, bool(align_corners)).to(x.dtype)


@operator("AffineGrid", 20, host=True)
def affine_grid(_: Context, theta: Any, size: Any, *, align_corners: int = 0) -> Tensor:
    return F.affine_grid(on_device(theta), [int(n) for n in integers(size)], bool(align_corners))


# -- regions ----------------------------------------------------------------------------------------------------------


@operator("RoiAlign", 10, host=True)
def roi_align_10(_: Context, x: Any, rois: Any, batch: Any, **attributes: Any) -> Tensor:
    return _roi_align(x, rois, batch, coordinate_transformation_mode="output_half_pixel", **attributes)


@operator("RoiAlign", 16, host=True)
def roi_align(_: Context, x: Any, rois: Any, batch: Any, **attributes: Any) -> Tensor:
    return _roi_align(x, rois, batch, **attributes)


def _roi_align(
    x: Any, rois: Any, batch: Any, *, coordinate_transformation_mode: str = "half_pixel", mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """How many places of a region are looked at depends on its size, so regions are read; gradients go to the images alone."""
    x, rois = on_device(x), np.asarray(on_host(rois), np.float64) * spatial_scale
    half = coordinate_transformation_mode == "half_pixel"
    begin = rois[:, :2] - (0.5 if half else 0.0)
    spread = rois[:, 2:] - rois[:, :2]
    spread = spread if half else np.maximum(spread, 1.0)
    (_, channels, height, width), count = x.shape, len(rois)
    mean = mode == "avg"
    ys = _looked_at(begin[:, 1], spread[:, 1], output_height, sampling_ratio, int(height), mean)
    xs = _looked_at(begin[:, 0], spread[:, 0], output_width, sampling_ratio, int(width), mean)
    rows = lz.reshape(lz.permute(x, (0, 2, 3, 1)), (-1, channels))
    image = np.asarray(on_host(batch), np.int64).reshape(-1, 1, 1, 1, 1) * int(height) * int(width)
    terms = []
    for i, wy in ys:
        for j, wx in xs:
            at = image + i[:, :, :, None, None] * int(width) + j[:, None, None, :, :]
            weight = wy[:, :, :, None, None] * wx[:, None, None, :, :]
            share = tensor(weight.astype(x.dtype.numpy)).unsqueeze(-1)
            seen = lz.index_select(rows, 0, tensor(at.reshape(-1)))
            terms.append(lz.reshape(seen, (*at.shape, channels)) * share)
    shape = (count, output_height, ys[0][0].shape[2], output_width, xs[0][0].shape[2], channels)
    together = reduce(lz.add if mean else lz.maximum, terms)
    y = (lz.sum if mean else lz.amax)(lz.reshape(together, shape), dim=(2, 4))
    return lz.permute(y, (0, 3, 1, 2))


Looked = list[tuple[np.ndarray, np.ndarray]]


def _looked_at(begin: np.ndarray, spread: np.ndarray, bins: int, ratio: int, extent: int, mean: bool) -> Looked:
    """Along one axis: the elements below and above each place, and their weights, each (regions, bins, places).

    Regions of fewer places than others have their last one several times; in a mean only once, and divided by their number.
    """
    size = spread / bins
    counts = np.full(len(begin), ratio) if ratio > 0 else np.maximum(1, np.ceil(size)).astype(np.int64)
    most = int(counts.max(initial=1))
    k = np.arange(most)
    at = begin[:, None, None] + size[:, None, None] * (
        np.arange(bins)[:, None] + (np.minimum(k, counts[:, None, None] - 1) + 0.5) / counts[:, None, None]
    )
    inside = (at >= -1) & (at <= extent)
    at = np.clip(at, 0, extent - 1)
    low = np.minimum(np.floor(at), extent - 1).astype(np.int64)
    high = np.minimum(low + 1, extent - 1)
    each = inside * np.where(k < counts[:, None, None], 1 / counts[:, None, None], 0.0) if mean else inside
    return [(low, (1 - (at - low)) * each), (high, (at - low) * each)]


@operator("NonMaxSuppression", 10, host=True)
def non_max_suppression(
    _: Context,
    boxes: Any,
    scores: Any,
    most: Any = None,
    iou: Any = None,
    least: Any = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Which boxes there are depends on the values, which are read."""
    corners = _corners(np.asarray(on_host(boxes), np.float64), bool(center_point_box))
    points = np.asarray(on_host(scores))
    limit = int(integers(most)[0]) if most is not None else 0
    overlap = float(np.reshape(on_host(iou), -1)[0]) if iou is not None else 0.0
    threshold = float(np.reshape(on_host(least), -1)[0]) if least is not None else -math.inf
    chosen = [
        (b, c, k)
        for b in range(points.shape[0])
        for c in range(points.shape[1])
        for k in _kept(corners[b], points[b, c], limit, overlap, threshold)
    ]
    return tensor(np.array(chosen, np.int64).reshape(-1, 3))


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """(..., 4): the smaller and the larger coordinates."""
    if centred:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.concatenate([centre - half, centre + half], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _kept(boxes: np.ndarray, scores: np.ndarray, limit: int, overlap: float, threshold: float) -> list[int]:
    """The best box, then the best of those that do not overlap with it too much, and so on."""
    left = np.argsort(-scores, kind="stable")
    left = left[scores[left] > threshold]
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    kept: list[int] = []
    while len(left) and len(kept) < limit:
        best, left = left[0], left[1:]
        kept.append(int(best))
        sides = np.minimum(boxes[left, 2:], boxes[best, 2:]) - np.maximum(boxes[left, :2], boxes[best, :2])
        common = np.prod(np.maximum(sides, 0), axis=1)
        whole = area[left] + area[best] - common
        left = left[np.divide(common, whole, out=np.zeros_like(common), where=whole > 0) <= overlap]
    return kept
