"""Modules that are made along a dotted name, for models whose structure is known by the names of their tensors."""

from __future__ import annotations

from lezero.nn.module import Module


def parent_of(root: Module, name: str) -> tuple[Module, str]:
    """The module that ``name`` (``layers.0.weight``) is an attribute of, made where it is missing, and the attribute's name."""
    *path, last = name.split(".")
    at = root
    for part in path:
        child = getattr(at, part, None)
        if not isinstance(child, Module):
            child = Module()
            setattr(at, part, child)
        at = child
    return at, last
