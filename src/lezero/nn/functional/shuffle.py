"""Channels to pixels and back."""

from __future__ import annotations

from lezero.tensor import Tensor


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., c r², h, w) -> (..., c, h r, w r), r = `upscale_factor`: channels become pixels (Shi et al. 2016)."""
    r = upscale_factor
    *lead, c, h, w = input.shape
    if int(c) % (r * r):
        raise ValueError(f"pixel_shuffle: {int(c)} channels are not a multiple of {r * r}")
    n = len(lead)
    x = input.reshape((*lead, c // (r * r), r, r, h, w))
    return x.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2)).reshape((*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., c, h r, w r) -> (..., c r², h, w), r = `downscale_factor`: the inverse of ``pixel_shuffle``."""
    r = downscale_factor
    *lead, c, h, w = input.shape
    if int(h) % r or int(w) % r:
        raise ValueError(f"pixel_unshuffle: height {int(h)} and width {int(w)} must be multiples of {r}")
    n = len(lead)
    x = input.reshape((*lead, c, h // r, r, w // r, r))
    return x.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3)).reshape((*lead, c * r * r, h // r, w // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """(batch, channels, ...): the channels of `groups` groups taken in turn (Zhang et al. 2018)."""
    b, c, *rest = input.shape
    if int(c) % groups:
        raise ValueError(f"channel_shuffle: {int(c)} channels are not a multiple of {groups} groups")
    return input.reshape((b, groups, c // groups, *rest)).transpose(1, 2).reshape((b, c, *rest))
