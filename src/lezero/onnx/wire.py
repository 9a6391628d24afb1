"""Large arrays inside an ONNX file, found without reading them.

An ONNX file is one protobuf message, and protobuf reads messages whole: a file of weights would be in memory twice before the
first array is made of it.  So the message is taken apart here as far as its large ``TensorProto.raw_data`` go: each is replaced
by where in the file it lies, in the form in which ONNX refers to data in other files, and what remains is small.

The wire format (https://protobuf.dev/programming-guides/encoding): a message is a sequence of fields, each a varint
``number << 3 | kind`` followed by a varint (kind 0), 8 bytes (1), a length and as many bytes (2), or 4 bytes (5).
"""

from __future__ import annotations

from collections.abc import Iterator

LEAST = 4096
"""Bytes of an array from which on it stays in the file."""
HERE = "\0"
"""The location that stands for the file itself."""

# Field numbers of onnx.proto: the messages on the way to a tensor, and what of a tensor is replaced.
MODEL, GRAPH, NODE, ATTRIBUTE, FUNCTION = "model", "graph", "node", "attribute", "function"
TENSOR = "tensor"
_INSIDE: dict[str, dict[int, str]] = {
    MODEL: {7: GRAPH, 25: FUNCTION},
    FUNCTION: {7: NODE},
    GRAPH: {1: NODE, 5: TENSOR},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH},
}
_DEEPEST = 100
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14


class WireError(ValueError):
    """Bytes that are not a protobuf message."""


def without_arrays(
    data: memoryview, message: str = MODEL, begin: int = 0, end: int | None = None, depth: int = 0
) -> bytes:
    """The message in ``data[begin:end]`` with large arrays replaced by references to their places in `data`.

    Raises
    ------
    WireError
        If it is not a message, cut short, or nested more deeply than protobuf reads.
    """
    if depth > _DEEPEST:
        raise WireError(f"messages are nested more than {_DEEPEST} deep")
    inside = _INSIDE.get(message, {})
    parts: list[bytes | memoryview] = []
    for number, kind, at, first, last in _fields(data, begin, len(data) if end is None else end):
        if kind == 2 and last - first >= LEAST and message == TENSOR and number == _RAW_DATA:
            parts.append(_reference(first, last - first))
        elif kind == 2 and last - first >= LEAST and number in inside:
            body = without_arrays(data, inside[number], first, last, depth + 1)
            parts += (_varint(number << 3 | 2), _varint(len(body)), body)
        else:
            parts.append(data[at:last])
    return b"".join(parts)


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Each field's number and kind, where it begins, and where its value begins and ends."""
    while at < end:
        start = at
        key, at = _read_varint(data, at, end)
        kind = key & 7
        if kind == 0:
            first = at
            _, at = _read_varint(data, at, end)
        elif kind in (1, 5):
            first, at = at, at + (8 if kind == 1 else 4)
        elif kind == 2:
            length, first = _read_varint(data, at, end)
            at = first + length
        else:
            raise WireError(f"a field of unknown kind {kind} at byte {start}")
        if at > end:
            raise WireError(f"the field at byte {start} goes on after the end")
        yield key >> 3, kind, start, first, at


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise WireError(f"a number that does not end at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _reference(offset: int, length: int) -> bytes:
    """The fields of a tensor that say where its data lies."""
    out = _varint(_DATA_LOCATION << 3) + b"\1"
    for key, value in (("location", HERE), ("offset", str(offset)), ("length", str(length))):
        entry = b"".join(_varint(n << 3 | 2) + _varint(len(s)) + s for n, s in ((1, key.encode()), (2, value.encode())))
        out += _varint(_EXTERNAL_DATA << 3 | 2) + _varint(len(entry)) + entry
    return out
