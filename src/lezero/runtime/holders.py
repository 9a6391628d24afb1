"""Which of the user's variables keeps a tensor alive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from lezero.runtime.recording import Handle
from lezero.runtime.sites import PACKAGE


def tensors_in(value: Any) -> Iterator[Handle]:
    if isinstance(value, Handle):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from tensors_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors_in(v)


def variables_of(handles: list[Handle], function: Any) -> Iterator[tuple[str, Handle]]:
    """(variable, tensor) for tensors that a variable of the user's keeps alive."""
    wanted = {id(h): h for h in handles}
    if not wanted:
        return
    places: list[tuple[str, dict[str, Any]]] = []
    code = getattr(function, "__code__", None)
    if code is not None:
        cells = zip(code.co_freevars, function.__closure__ or ())
        places.append(("", {name: cell.cell_contents for name, cell in cells if _filled(cell)}))
        places.append(("", function.__globals__))
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            places.append(("", frame.f_locals))
        frame = frame.f_back
    for root in (function, *(v for _, place in list(places) for v in place.values())):
        if callable(getattr(root, "named_modules", None)) and not isinstance(root, type):
            places += [(f"{type(root).__name__}{'.' + n if n else ''}.", vars(m)) for n, m in root.named_modules()]
    named: set[int] = set()
    for prefix, variables in places:
        for name, value in list(variables.items()):
            if not isinstance(value, Handle) and type(value) not in (list, tuple, dict):
                continue  # also where it is a subclass, which may do anything when it is looked into
            for h in tensors_in(value):
                if id(h) in wanted and id(h) not in named:
                    named.add(id(h))
                    yield prefix + name, h


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
