"""The image classifiers that the command line can train by name, and how they are kept in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lezero import nn
from lezero.tensor import Tensor


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def residual(num_classes: int, size: int, width: int = 16) -> nn.Module:
    """A small residual network for grey images; images wider than 16 pixels are halved by its first layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2 if size > 16 else 1, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        ResidualBlock(width, width, 1),
        ResidualBlock(width, 2 * width, 2),
        ResidualBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )


def _lenet5(num_classes: int, size: int) -> nn.Module:
    from lezero.models import lenet5

    return lenet5(num_classes=num_classes)


def _of_colour(name: str) -> Callable[[int, int], nn.Module]:
    """What makes one of lezero.models, behind a layer that makes three channels of grey."""

    def make(num_classes: int, size: int) -> nn.Module:
        from lezero import models

        options = {"image_size": size} if name == "vit_b_16" else {}
        return nn.Sequential(nn.Conv2d(1, 3, 1), getattr(models, name)(num_classes=num_classes, **options))

    return make


class Network(NamedTuple):
    """What makes a network of (number of classes, size of its images), and for which sizes there is one."""

    make: Callable[[int, int], nn.Module]
    size: Callable[[int], int]  # for images of a size
    shown: int  # the size of images in an example


def _any(size: int) -> int:
    return size


def _halved_five_times(size: int) -> int:
    return max(size, 32)


def _patches(size: int) -> int:
    return -(-size // 16) * 16


NETWORKS: dict[str, Network] = {
    "residual": Network(residual, _any, 28),
    "lenet5": Network(_lenet5, lambda size: 28, 28),
    **{
        name: Network(_of_colour(name), _any, 64)
        for name in "resnet18 resnet34 resnet50 resnet101 mobilenet_v2".split()
    },
    **{name: Network(_of_colour(name), _halved_five_times, 64) for name in ("vgg16", "vgg16_bn")},
    "vit_b_16": Network(_of_colour("vit_b_16"), _patches, 224),
}


class Classifier:
    """A network with what is needed to use it: its name, the size of its images, and the names of the classes."""

    def __init__(self, name: str, size: int, classes: list[str]) -> None:
        network = NETWORKS[name]
        self.name, self.size, self.classes = name, network.size(size), list(classes)
        self.model = network.make(len(classes), self.size)

    def prepare(self, images: np.ndarray) -> np.ndarray:
        """uint8 (count, height, width) -> float32 (count, 1, size, size) in [0, 1]."""
        return resized(images, self.size)[:, None].astype(np.float32) / 255

    def save(self, path: str | Path, **facts: Any) -> None:
        import lezero as lz

        about = {"network": self.name, "size": self.size, "classes": self.classes, **facts}
        lz.save({"classifier": about, "state": self.model.state_dict()}, path)

    @classmethod
    def open(cls, path: str | Path) -> Classifier:
        import lezero as lz

        content = lz.load(path)
        about = content.get("classifier") if isinstance(content, dict) else None
        if not isinstance(about, dict) or about.get("network") not in NETWORKS:
            raise lz.io.LzmError(
                f"{path} holds no classifier that `lezero train` or `lezero quickstart` saved, but {_described(content)}"
            )
        try:
            classifier = cls(about["network"], about["size"], about["classes"])
            classifier.model.load_state_dict(content["state"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise lz.io.LzmError(f"{path} holds a classifier that this version cannot build ({error})") from None
        classifier.model.eval()
        return classifier

    def probabilities(self, images: np.ndarray, batch: int = 256) -> np.ndarray:
        """(count, classes) for uint8 images."""
        import lezero as lz

        prepared = self.prepare(images)
        parts = []
        with lz.no_grad():
            for start in range(0, len(prepared), batch):
                scores = self.model(lz.tensor(prepared[start : start + batch]))
                parts.append(scores.softmax(1).numpy())
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)), np.float32)


def _described(content: Any) -> str:
    """What another .lzm file holds, and what can be done with it."""
    if not isinstance(content, dict):
        return f"a {type(content).__name__}; lz.load opens it"
    if "batches_done" in content:
        return (
            f"a trainer's checkpoint (epoch {content['epoch']}, step {content['step']}); build the model in Python and load it: "
            'model.load_state_dict(lz.load(file)["model"])'
        )
    if content and all(isinstance(v, Tensor) for v in content.values()):
        return (
            f"the state of a model ({len(content)} tensors); build the model in Python and load it: "
            "model.load_state_dict(lz.load(file))"
        )
    names = ", ".join(map(str, list(content)[:5]))
    return f"a dictionary ({names}{', …' if len(content) > 5 else ''}); lz.load opens it"


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Images of `size` x `size`: enlarged by a whole factor, or shrunk by averaging, then framed in black."""
    height, width = images.shape[1:]
    while max(height, width) > size:
        images = _halved(images)
        height, width = images.shape[1:]
    factor = size // max(height, width)
    images = images.repeat(factor, 1).repeat(factor, 2)
    room = [size - extent for extent in images.shape[1:]]
    return np.pad(images, [(0, 0), *((r // 2, r - r // 2) for r in room)])


def _halved(images: np.ndarray) -> np.ndarray:
    count, height, width = images.shape
    even = np.pad(images, [(0, 0), (0, height % 2), (0, width % 2)])
    blocks = even.reshape(count, (height + 1) // 2, 2, (width + 1) // 2, 2)
    return blocks.mean((2, 4)).round().astype(images.dtype)
