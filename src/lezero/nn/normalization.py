"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lezero.arguments import whole
from lezero.graph.dtype import int64
from lezero.nn import functional as F
from lezero.nn import init
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter, new_buffer, new_parameter
from lezero.tensor import Tensor, no_grad


class _Affine(Module):
    """A scale and a shift, each where it is wanted: what most normalisations share."""

    weight: Parameter | None
    bias: Parameter | None

    def _register_affine(self, shape: Sequence[int], scaled: bool, shifted: bool, device: Any, dtype: Any) -> None:
        for name, wanted in (("weight", scaled), ("bias", scaled and shifted)):
            self.register_parameter(name, new_parameter(*shape, device=device, dtype=dtype) if wanted else None)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class _WithStatistics(_Affine):
    """Scale, shift and running statistics of channels: what batch and instance normalisation share."""

    ndims: tuple[int, ...]
    shapes: str
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _states_may_lack = ("num_batches_tracked",)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._register_affine((num_features,), affine, bias, device, dtype)
        tracked = track_running_stats
        self.register_buffer("running_mean", new_buffer(num_features, device=device, dtype=dtype) if tracked else None)
        self.register_buffer(
            "running_var", new_buffer(num_features, fill=1.0, device=device, dtype=dtype) if tracked else None
        )
        self.register_buffer("num_batches_tracked", new_buffer(dtype=int64) if tracked else None)
        if self.weight is not None:
            init.ones_(self.weight)

    def reset_running_stats(self) -> None:
        """Back to mean 0, variance 1 and no batches."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with no_grad():
                self.running_mean.zero_()
                self.running_var.fill_(1)
                self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        super().reset_parameters()

    def _channel_axis(self, x: Tensor) -> int:
        return 1

    def _check(self, x: Tensor) -> None:
        if x.ndim not in self.ndims or x.shape[self._channel_axis(x)] != self.num_features:
            raise ValueError(
                f"{type(self).__name__}: an input {self.shapes} of {self.num_features} channels is needed, got shape {tuple(x.shape)}"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_WithStatistics):
    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        mean, training = self.running_mean, self.training
        count = self.num_batches_tracked if training else None
        momentum = 0.0 if self.momentum is None and count is None else self.momentum
        return F.batch_norm(
            input, mean, self.running_var, self.weight, self.bias, training or mean is None, momentum, self.eps,
            num_batches_tracked=count,
        )  # fmt: skip


class BatchNorm1d(_BatchNorm):
    """Batch normalisation (Ioffe & Szegedy 2015) of (batch, channels) or (batch, channels, length).

    Parameters
    ----------
    num_features : int, the channels
    eps : float, added to the variance
    momentum : float or None
        How far the running statistics move at each batch; None: they are the mean over all batches.
    affine, bias : bool
        Whether there are a `weight` (ones at first) and, with it, a `bias` (zeros).
    track_running_stats : bool
        Whether evaluation uses running statistics; otherwise each batch's own.
    """

    ndims, shapes = (2, 3), "(batch, channels) or (batch, channels, length)"


class BatchNorm2d(_BatchNorm):
    """Batch normalisation (Ioffe & Szegedy 2015) of (batch, channels, height, width); see :class:`BatchNorm1d`."""

    ndims, shapes = (4,), "(batch, channels, height, width)"


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (batch, channels, depth, height, width); see :class:`BatchNorm1d`."""

    ndims, shapes = (5,), "(batch, channels, depth, height, width)"


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of (batch, channels, ...): of all of a batch, which one process has; see :class:`BatchNorm1d`."""

    ndims, shapes = (2, 3, 4, 5), "(batch, channels, ...)"

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)
        self.process_group = process_group

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with every batch normalisation in it replaced; parameters and buffers stay the same objects."""
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            converted = cls.__new__(cls)
            converted.__dict__.update(module.__dict__, process_group=process_group)
            return converted
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module


class _InstanceNorm(_WithStatistics):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def _channel_axis(self, x: Tensor) -> int:
        return x.ndim - max(self.ndims) + 1

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        single = input.ndim == min(self.ndims)
        if single:
            input = input.unsqueeze(0)
        own = self.training or not self.track_running_stats
        y = F.instance_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum or 0.0, self.eps
        )
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation (Ulyanov et al. 2016) of (batch, channels, length) or (channels, length).

    Parameters are those of :class:`BatchNorm1d`, without scale, shift and running statistics unless asked for.
    """

    ndims, shapes = (2, 3), "(batch, channels, length) or (channels, length)"


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of (batch, channels, height, width) or without batch; see :class:`InstanceNorm1d`."""

    ndims, shapes = (3, 4), "(batch, channels, height, width) or (channels, height, width)"


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of (batch, channels, depth, height, width) or without batch; see :class:`InstanceNorm1d`."""

    ndims, shapes = (4, 5), "(batch, channels, depth, height, width) or (channels, depth, height, width)"


class LayerNorm(_Affine):
    """Layer normalisation (Ba, Kiros & Hinton 2016) over the last dimensions.

    Parameters
    ----------
    normalized_shape : int or ints, the last extents
    eps : float, added to the variance
    elementwise_affine, bias : bool
        Whether there are a `weight` (ones at first) and a `bias` (zeros), of `normalized_shape`.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self._register_affine(shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """Root-mean-square normalisation (Zhang & Sennrich 2019) over the last dimensions.

    Parameters
    ----------
    normalized_shape : int or ints, the last extents
    eps : float or None, the dtype's machine epsilon unless given
    elementwise_affine : bool
        Whether there is a `weight` (ones at first).
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.register_parameter(
            "weight", new_parameter(*shape, device=device, dtype=dtype) if elementwise_affine else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """Group normalisation (Wu & He 2018) of (batch, channels, ...).

    Parameters
    ----------
    num_groups, num_channels : int; the groups divide the channels
    eps : float, added to the variance
    affine, bias : bool
        Whether there are a `weight` (ones at first) and, with it, a `bias` (zeros) for each channel.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ):
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_channels} channels are not a multiple of {num_groups} groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._register_affine((num_channels,), affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class CrossMapLRN2d(Module):
    """Local response normalisation across channels as Torch had it: windows of an odd number of channels, `size` or one less.

    Sums are divided by `size`, also at the first and last channels.  Further parameters are those of
    :func:`~lezero.nn.functional.local_response_norm`.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = whole("CrossMapLRN2d: size", size, 1), alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        """(batch, channels, height, width), unchanged in shape"""
        if input.ndim != 4:
            raise ValueError(
                f"CrossMapLRN2d: an input (batch, channels, height, width) is needed, got shape {tuple(input.shape)}"
            )
        reach, channels = (self.size - 1) // 2, input.shape[1]
        squares = F.pad(input.square(), (0, 0, 0, 0, reach, reach))
        total = squares.narrow(1, 0, channels)
        for k in range(1, 2 * reach + 1):
            total = total + squares.narrow(1, k, channels)
        return input * (total * (self.alpha / self.size) + self.k) ** -self.beta

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class LocalResponseNorm(Module):
    """Local response normalisation across channels (Krizhevsky et al. 2012).

    Parameters are those of :func:`~lezero.nn.functional.local_response_norm`.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = whole("LocalResponseNorm: size", size, 1), alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
