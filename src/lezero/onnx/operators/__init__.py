"""What ONNX's operators compute, by family; importing this package registers them."""

from lezero.onnx.operators import (
    classical,
    control,
    decoding,
    drawing,
    elementwise,
    indexing,
    microsoft,
    network,
    quantising,
    reducing,
    shaping,
    signals,
    strings,
    training,
)

__all__ = [
    "classical",
    "control",
    "decoding",
    "drawing",
    "elementwise",
    "indexing",
    "microsoft",
    "network",
    "quantising",
    "reducing",
    "shaping",
    "signals",
    "strings",
    "training",
]
