"""What travels between a loader and its workers, and how: framed pickles, with large arrays in shared memory.

Functions and classes defined in the user's ``__main__`` (or inside other functions) travel by value (by_value.py), so that
a worker never runs the training script.  Arrays and tensors become buffers beside the pickle and are copied once on
each side.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from lezero.data import by_value

_ALIGN = 64


class Leaf:
    """A freshly collated array that is to become a Tensor in the loader's process."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


@dataclass
class Packed:
    """A pickle and the buffers beside it, either laid out in a shared block or carried along."""

    pickle: bytes
    sizes: list[int]
    inline: list[bytes] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the buffers take when laid out one after the other."""
        return sum(_padded(size) for size in self.sizes)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class _Pickler(by_value.Pickler):
    """Functions and classes by value where needed, and arrays and tensors as out-of-band buffers."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is Leaf:
            return _load_tensor, _array_parts(obj.array)
        if kind is np.ndarray and not obj.dtype.hasobject:
            return _load_array, _array_parts(obj)
        from lezero.tensor import Tensor

        if kind is Tensor:
            return _load_tensor, _array_parts(obj.numpy())
        return super().reducer_override(obj)


def _array_parts(array: np.ndarray) -> tuple[Any, Any, tuple[int, ...]]:
    flat = np.ascontiguousarray(array).reshape(-1)
    dtype: Any = array.dtype
    if array.dtype.kind == "V" and array.dtype.names is None:
        dtype = array.dtype.type  # ml_dtypes' types lose themselves when a dtype object is pickled by its name
    return pickle.PickleBuffer(flat.view(np.uint8).data), dtype, array.shape


_alias = False  # whether arrays may look into the buffers they came in (set while a worker unpacks its dataset)


def _load_array(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(buffer if _alias else bytearray(buffer), np.uint8).view(dtype).reshape(shape)


def _load_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    from lezero.tensor import tensor

    return tensor(np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape))  # copies


def dump(obj: Any, place: Callable[[int], memoryview | None], returning: bool = False) -> Packed:
    """Pickle `obj`; its buffers go to the memory that ``place(nbytes)`` offers, or along if it offers none.

    `returning` says that it goes back to the process that sent this one its classes and functions.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, buffer_callback=buffers.append, returning=returning).dump(obj)
    views = [b.raw() for b in buffers]
    packed = Packed(file.getvalue(), [v.nbytes for v in views])
    target = place(packed.nbytes) if packed.nbytes else None
    if target is None:
        packed.inline = [bytes(v) for v in views]
        return packed
    start = 0
    for view in views:
        target[start : start + view.nbytes] = view
        start += _padded(view.nbytes)
    return packed


def load(packed: Packed, memory: Callable[[int], memoryview], alias: bool = False) -> Any:
    """The object again; ``memory(nbytes)`` is where its buffers lie.

    Nothing in the result refers to that memory, unless `alias` lets its arrays do so.
    """
    global _alias
    if packed.inline is not None:
        return pickle.loads(packed.pickle, buffers=packed.inline)
    view = memory(packed.nbytes) if packed.nbytes else memoryview(b"")
    buffers, start = [], 0
    for size in packed.sizes:
        buffers.append(view[start : start + size])
        start += _padded(size)
    _alias = alias
    try:
        return pickle.loads(packed.pickle, buffers=buffers)
    finally:
        _alias = False


def write_frame(file: BinaryIO, message: Any) -> None:
    content = pickle.dumps(message, protocol=5)
    file.write(struct.pack("<Q", len(content)))
    file.write(content)
    file.flush()


def read_frame(file: BinaryIO) -> Any:
    """The next message; raises EOFError when the other side is gone."""
    (size,) = struct.unpack("<Q", _read(file, 8))
    return pickle.loads(_read(file, size))


def _read(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError
    return content


# -- messages -------------------------------------------------------------------------------------------------


@dataclass
class Setup:
    """The first message to a worker."""

    worker: int
    workers: int
    cargo: Packed  # (dataset, collate_fn or None, worker_init_fn)
    cargo_block: tuple[int | None, str | None]
    slots: list[tuple[int | None, str | None]]
    batched: bool
    stream: bool


@dataclass
class Ready:
    """The worker has its dataset; the clock of a timeout starts here."""


@dataclass
class Epoch:
    """A new pass begins: whatever is queued of older ones need not be made."""

    epoch: int
    seed: int


@dataclass
class Task:
    """Make batch `number` of `epoch` into slot `slot`: from these indices, or the next `count` items of a stream."""

    epoch: int
    number: int
    slot: int
    indices: Sequence[Any] | Any = None
    count: int | None = None
    drop_last: bool = False


@dataclass
class Result:
    """A batch."""

    epoch: int
    number: int
    slot: int
    batch: Packed


@dataclass
class Exhausted:
    """The worker's stream has ended."""

    epoch: int
    number: int


@dataclass
class Failure:
    """An exception: pickled if it can be, and its traceback as text."""

    epoch: int
    number: int
    context: str
    kind: str
    message: str
    traceback: str
    exception: bytes | None
