"""What ONNX's operators compute, by family; importing this package registers them."""

from lezero.onnx.operators import (
    classical,
    control,
    drawing,
    elementwise,
    images,
    indexing,
    network,
    quantising,
    reducing,
    shaping,
    signals,
    strings,
    training,
)  # fmt: skip

__all__ = [
    "classical",
    "control",
    "drawing",
    "elementwise",
    "images",
    "indexing",
    "network",
    "quantising",
    "reducing",
    "shaping",
    "signals",
    "strings",
    "training",
]
