"""Which of the user's lines a node comes from, and (for ``lz.explain``) which layer."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lezero.graph.node import Node
from lezero.runtime.recording import STATE
from lezero.switched import switched

PACKAGE = str(Path(__file__).resolve().parent.parent)
_NOT_USERS = (PACKAGE, contextlib.__file__, functools.__file__)


def on_line() -> switched:
    """Context: give everything recorded inside the user's line of now, looked up once."""
    return switched(STATE, "site", STATE.site or find_site())


_ours: dict[Any, bool] = {}  # code object -> whether it belongs to this package


def user_site() -> tuple[str, int] | None:
    """The innermost line of code outside this package."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        inside = _ours.get(code)
        if inside is None:
            if len(_ours) > 20_000:
                _ours.clear()
            inside = _ours[code] = code.co_filename.startswith(_NOT_USERS)
        if not inside:
            return code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


find_site: Callable[[], tuple[str, int] | None] = user_site
"""Where the site of a new node comes from: ``lz.explain`` adds the layer."""


class Site(tuple[str, int]):
    """A user's (file, line), and the layer being called.  What a gradient records has the site of what it is a gradient of."""

    layer: str

    def __new__(cls, site: tuple[str, int], layer: str) -> Site:
        made = super().__new__(cls, site)
        made.layer = layer
        return made


class LayerSites:
    """How nodes are given their sites while a function is explained."""

    def __init__(self, find: Callable[[], tuple[str, int] | None]):
        self.find = find
        self.layers: dict[str, None] = {}  # in the order they were called
        self.outermost: dict[int, tuple[Any, dict[int, str]]] = {}  # by id: a module, and what each in it is called

    def __call__(self) -> Site | None:
        site, layer = self.find(), self._layer()
        if layer:
            self.layers[layer] = None
        return None if site is None else Site(site, layer)

    def _layer(self) -> str:
        called = []
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "__call__":
                module = frame.f_locals.get("self")
                if callable(getattr(module, "named_modules", None)):
                    called.append(module)
            frame = frame.f_back
        if not called:
            return ""
        root = called[-1]
        if id(root) not in self.outermost:
            title = type(root).__name__
            self.outermost[id(root)] = root, {id(m): f"{title}.{n}" if n else title for n, m in root.named_modules()}
        paths = self.outermost[id(root)][1]
        return next((paths[id(m)] for m in called if id(m) in paths), "")


def layer_of(node: Node) -> str:
    """The innermost module whose call recorded a node, ``ResNet.layer1.0.conv1``; "" outside of all."""
    return node.site.layer if isinstance(node.site, Site) else ""
