"""Changes to single images, for a dataset's ``transform``.

They take NumPy arrays or tensors whose last two dimensions are height and width, and give back the same kind.  Random ones
draw from :func:`lezero.data.randomness.batch_generator`, so a loader repeats them exactly, with workers or without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lezero.data.randomness import batch_generator
from lezero.misspelt import suggest_names
from lezero.tensor import Tensor, tensor


class Compose:
    """One transform after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """An image as a float32 tensor (channels, height, width); unsigned bytes are scaled from 0 … 255 to 0 … 1.

    Takes (height, width), (height, width, channels) and anything ``numpy.asarray`` makes one of these of.
    """

    def __call__(self, image: Any) -> Tensor:
        array = np.asarray(image)
        if array.ndim not in (2, 3):
            raise ValueError(f"ToTensor: an image has 2 or 3 dimensions, got shape {array.shape}")
        scale = 255 if array.dtype == np.uint8 else 1
        planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return tensor(planes.astype(np.float32) / np.float32(scale))


class Normalize:
    """``(image - mean) / std``, channel by channel (the third dimension from the end)."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (mean, std))
        if (self.std == 0).any():
            raise ValueError("Normalize: std must not be zero")

    def __call__(self, image: Any) -> Any:
        return _on_array(image, lambda a: (a - self.mean) / self.std)


class RandomCrop:
    """A random window of `size` out of the image, after a border of `padding` pixels of value `fill` was added."""

    def __init__(self, size: int | tuple[int, int], padding: int = 0, fill: float = 0) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.padding, self.fill = padding, fill

    def __call__(self, image: Any) -> Any:
        return _on_array(image, self._crop)

    def _crop(self, array: np.ndarray) -> np.ndarray:
        border = self.padding
        if border:
            widths = [(0, 0)] * (array.ndim - 2) + [(border, border)] * 2
            array = np.pad(array, widths, constant_values=self.fill)
        room = [have - want for have, want in zip(array.shape[-2:], self.size)]
        if min(room) < 0:
            raise ValueError(
                f"RandomCrop: {self.size} does not fit into an image of {array.shape[-2:]} (border included)"
            )
        top, left = (int(n) for n in batch_generator().integers(0, np.array(room) + 1))
        return array[..., top : top + self.size[0], left : left + self.size[1]]


class RandomHorizontalFlip:
    """The image mirrored left to right, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        if batch_generator().random() >= self.p:
            return image
        return _on_array(image, lambda a: a[..., ::-1])


class Lambda:
    """Any function as a transform."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, image: Any) -> Any:
        return self.function(image)


def _on_array(image: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    if isinstance(image, Tensor):
        return tensor(change(image.numpy()))
    return change(np.asarray(image))


suggest_names(__name__)
