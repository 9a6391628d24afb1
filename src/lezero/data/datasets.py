"""Readers of image sets: scikit-learn's digits, MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lezero.data.dataset import Dataset
from lezero.data.randomness import generator_from
from lezero.misspelt import suggest_names

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Images(Dataset):
    """Grey images with labels, all in memory.

    Attributes
    ----------
    images : numpy.ndarray, uint8, (count, height, width)
    labels : numpy.ndarray, int64, (count,)
    classes : names of the labels

    Item i is ``(transform(image), label)``; without a transform the image is the uint8 array.
    """

    classes: Sequence[str] = tuple("0123456789")

    def __init__(self, images: np.ndarray, labels: np.ndarray, transform: Callable[[Any], Any] | None = None) -> None:
        self.images, self.labels, self.transform = images, labels.astype(np.int64), transform
        if transform is None:
            self.gather = self._gather

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self.images[index]
        return (image if self.transform is None else self.transform(image)), int(self.labels[index])

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        height, width = self.images.shape[1:]
        return f"{type(self).__name__}({len(self)} images of {height}x{width})"

    def _gather(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return self.images[indices], self.labels[indices]

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All images as float32 (count, 1, height, width) in [0, 1], and all labels: for a ``TensorDataset``."""
        return self.images[:, None].astype(np.float32) / 255, self.labels


class Digits(Images):
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels (NIST, 43 writers), the values scaled to 0 … 255.

    Parameters
    ----------
    train : the 80 % for training or the 20 % held out; which is which depends on `seed` alone
    """

    def __init__(self, train: bool = True, transform: Callable[[Any], Any] | None = None, seed: int = 0) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ModuleNotFoundError(
                "the digits come with scikit-learn, which is not installed: pip install 'lezero[quickstart]' (or "
                "pip install scikit-learn)"
            ) from None
        raw = load_digits()
        order = generator_from(seed).permutation(len(raw.target))
        held_out = len(order) // 5
        chosen = order[held_out:] if train else order[:held_out]
        images = np.round(raw.images[chosen] * (255 / 16)).astype(np.uint8)
        super().__init__(images, raw.target[chosen], transform)


class MNIST(Images):
    """MNIST's 60,000 + 10,000 handwritten digits of 28x28 pixels, read from its IDX files.

    Parameters
    ----------
    root : folder with the files, or with ``MNIST/raw`` in it; each may be gzipped (``.gz``) or not
    train : the training or the test part

    Raises
    ------
    FileNotFoundError
        If the folder or a file is missing; says which files are wanted and where they can be had.
    ValueError
        If a file is damaged or is not what it should be.
    """

    source = "https://ossci-datasets.s3.amazonaws.com/mnist/ (the four .gz files)"

    def __init__(self, root: str | Path, train: bool = True, transform: Callable[[Any], Any] | None = None) -> None:
        part = "train" if train else "t10k"
        folder = self._folder(Path(root).expanduser())
        paths = [self._find(folder, f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        images, labels = (_expect(read_idx(path), dims, path) for path, dims in zip(paths, (3, 1)))
        if len(images) != len(labels):
            raise ValueError(f"{paths[0]} has {len(images)} images, but {paths[1]} has {len(labels)} labels")
        super().__init__(images, labels, transform)

    def _folder(self, root: Path) -> Path:
        for folder in (root, root / "raw", root / type(self).__name__ / "raw"):
            if folder.is_dir() and any(folder.glob("*-ubyte*")):
                return folder
        if not root.is_dir():
            raise FileNotFoundError(f"there is no folder {str(root)!r}. {self._wanted()}")
        return root

    def _find(self, folder: Path, name: str) -> Path:
        for variant in (name, name.replace("-idx", ".idx")):
            for path in (folder / variant, folder / f"{variant}.gz"):
                if path.is_file():
                    return path
        raise FileNotFoundError(f"there is no {name} or {name}.gz in {str(folder)!r}. {self._wanted()}")

    def _wanted(self) -> str:
        return (
            f"{type(self).__name__} wants train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
            f"t10k-labels-idx1-ubyte, gzipped or not; get them from {self.source}"
        )


class FashionMNIST(MNIST):
    """Zalando's Fashion-MNIST: 60,000 + 10,000 articles of clothing in MNIST's format (see :class:`MNIST`)."""

    source = "https://github.com/zalandoresearch/fashion-mnist (folder data/fashion)"
    classes = (
        "T-shirt/top", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    )  # fmt: skip


def read_idx(path: str | Path) -> np.ndarray:
    """The array in an IDX file (LeCun's format: two zero bytes, type, rank, big-endian extents, elements), gzipped or not.

    Raises
    ------
    FileNotFoundError, ValueError
        With the file's name and what is wrong with it.
    """
    path = Path(path)
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged or incomplete gzip file ({error}); get it again") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise ValueError(
            f"{path} is not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}, not with 00 00 08"
        )
    dtype, rank = np.dtype(_IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], ">u4")) if len(content) >= start else ()
    wanted = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(shape) != rank or len(content) < wanted:
        raise ValueError(f"{path} is truncated: {len(content):,} of {wanted:,} bytes are there; get it again")
    if len(content) > wanted:
        raise ValueError(f"{path} has {len(content) - wanted:,} bytes too many for an IDX file of shape {shape}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _expect(array: np.ndarray, dims: int, path: Path) -> np.ndarray:
    if array.ndim != dims or array.dtype != np.uint8:
        raise ValueError(
            f"{path} should hold {dims}-dimensional unsigned bytes, but holds {array.ndim}-d {array.dtype}"
        )
    return array


suggest_names(__name__)
