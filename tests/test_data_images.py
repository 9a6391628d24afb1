"""Readers of image files, and transforms."""

import gzip
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lezero.data import DataLoader
from lezero.data.datasets import MNIST, Digits, FashionMNIST, read_idx
from lezero.data.randomness import batch_randomness
from lezero.data.transforms import Compose, Lambda, Normalize, RandomCrop, RandomHorizontalFlip, ToTensor
from lezero.tensor import Tensor, tensor


def idx(array, magic=0x08):
    array = np.asarray(array)
    head = struct.pack(f">HBB{array.ndim}I", 0, magic, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_mnist(folder, count=12, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", count), ("t10k", count // 2)):
        for kind, array in (
            ("images-idx3-ubyte", rng.integers(0, 256, (n, 28, 28), np.uint8)),
            ("labels-idx1-ubyte", (np.arange(n) % 10).astype(np.uint8)),
        ):
            content = idx(array)
            name = f"{part}-{kind}" + (".gz" if zipped else "")
            (folder / name).write_bytes(gzip.compress(content) if zipped else content)
    return folder


# -- digits ---------------------------------------------------------------------------------------------------


def test_digits_are_split_once_and_for_all():
    pytest.importorskip("sklearn")
    training, held_out = Digits(True), Digits(False)
    assert len(training) == 1438 and len(held_out) == 359
    assert training.images.dtype == np.uint8 and training.images.shape[1:] == (8, 8) and training.images.max() == 255
    rows = {i.tobytes() for i in training.images} & {i.tobytes() for i in held_out.images}
    assert not rows
    assert np.array_equal(Digits(False).labels, held_out.labels)
    assert held_out.labels[:6].tolist() == Digits(False)._gather(range(6))[1].tolist()
    images, labels = training.arrays()
    assert images.shape == (1438, 1, 8, 8) and images.dtype == np.float32 and labels.dtype == np.int64


def test_without_scikit_learn_digits_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'lezero\[quickstart\]'"):
        Digits()


# -- IDX ------------------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    kind=st.sampled_from([("u1", 0x08), ("i1", 0x09), ("i2", 0x0B), ("i4", 0x0C), ("f4", 0x0D), ("f8", 0x0E)]),
    zipped=st.booleans(),
)
def test_idx_files_of_every_type_are_read(shape, kind, zipped, tmp_path_factory):
    path = tmp_path_factory.mktemp("idx") / "x"
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind[0])
    content = idx(array, kind[1])
    path.write_bytes(gzip.compress(content) if zipped else content)
    back = read_idx(path)
    assert back.dtype == array.dtype and np.array_equal(back, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file: it begins with nothing"),
        (b"\x89PNG....", "not an IDX file: it begins with 89 50 4e 47"),
        (b"\0\0\x07\x01\0\0\0\0", "not an IDX file"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], "is truncated: 17 of 18 bytes"),
        (idx(np.zeros((2, 3), np.uint8))[:7], "is truncated"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "is truncated"),
        (idx(np.zeros(3, np.uint8)) + b"!", "1 bytes too many"),
        (gzip.compress(idx(np.zeros(99, np.uint8)), mtime=0)[:-9], "damaged or incomplete gzip"),
        (b"\x1f\x8b" + bytes(20), "damaged or incomplete gzip"),
    ],
)
def test_damaged_idx_files_say_what_is_wrong(content, message, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "x")


# -- MNIST ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("inside", [".", "raw", "MNIST/raw"])
def test_mnist_is_found_zipped_or_not_and_where_others_put_it(zipped, inside, tmp_path):
    write_mnist(tmp_path / inside, zipped=zipped)
    training, test = MNIST(tmp_path), MNIST(str(tmp_path), train=False)
    assert (len(training), len(test)) == (12, 6)
    image, label = training[3]
    assert image.shape == (28, 28) and label == 3
    batch, labels = next(iter(DataLoader(training, 4)))
    assert batch.shape == (4, 28, 28) and batch.dtype.name == "uint8" and labels.numpy().tolist() == [0, 1, 2, 3]


def test_fashion_mnist_has_its_own_classes(tmp_path):
    assert FashionMNIST(write_mnist(tmp_path)).classes[9] == "ankle boot"


def test_a_missing_folder_or_file_says_what_is_wanted_and_where_to_get_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no folder.*t10k-labels-idx1-ubyte, gzipped or not; get them from https"
    ):
        MNIST(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte or .*\.gz in.*zalandoresearch"):
        FashionMNIST(tmp_path)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(5, np.uint8)))
    with pytest.raises(ValueError, match=r"12 images, but .* has 5 labels"):
        MNIST(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros((5, 5), np.uint8)))
    with pytest.raises(ValueError, match="should hold 1-dimensional unsigned bytes, but holds 2-d"):
        MNIST(tmp_path)


# -- transforms -----------------------------------------------------------------------------------------------


def test_to_tensor_scales_bytes_and_puts_channels_first():
    grey = ToTensor()(np.full((4, 5), 255, np.uint8))
    assert isinstance(grey, Tensor) and grey.shape == (1, 4, 5) and grey.numpy().max() == 1
    assert ToTensor()(np.zeros((4, 5, 3), np.uint8)).shape == (3, 4, 5)
    assert ToTensor()(np.full((2, 2), 0.5)).numpy().max() == 0.5
    with pytest.raises(ValueError, match="2 or 3 dimensions"):
        ToTensor()(np.zeros(3))


def test_transforms_keep_the_kind_they_were_given():
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    for transform in (Normalize(1, 2), RandomCrop(3), RandomHorizontalFlip(1), RandomHorizontalFlip(0)):
        assert isinstance(transform(image), np.ndarray)
        assert isinstance(transform(tensor(image)), Tensor)
    assert np.array_equal(RandomHorizontalFlip(1)(image), image[..., ::-1])
    normal = Normalize([0, 1], [1, 2])(np.ones((2, 3, 3), np.float32))
    assert normal[0].max() == 1 and normal[1].max() == 0


@given(size=st.integers(1, 8), padding=st.integers(0, 3), seed=st.integers(0, 1000))
def test_a_crop_is_a_window_of_the_padded_image(size, padding, seed):
    image = np.arange(1, 37).reshape(6, 6)
    if size > 6 + 2 * padding:
        with pytest.raises(ValueError, match="does not fit"):
            RandomCrop(size, padding)(image)
        return
    with batch_randomness(seed, 0):
        window = RandomCrop(size, padding, fill=99)(image)
    framed = np.pad(image, padding, constant_values=99)
    windows = np.lib.stride_tricks.sliding_window_view(framed, (size, size))
    assert (windows == window).all((2, 3)).any()


def test_random_transforms_repeat_with_the_batch():
    transform = Compose([RandomCrop(4, padding=2), RandomHorizontalFlip(), Lambda(lambda a: a + 1)])
    image = np.arange(16).reshape(4, 4)

    def draw(number):
        with batch_randomness(5, number):
            return [transform(image).tolist() for _ in range(5)]

    assert draw(0) == draw(0) != draw(1)
