"""Finding and choosing backends."""

from __future__ import annotations

import os
from importlib import import_module

from lezero.hal.backend import Backend
from lezero.knobs import KnobError, warn_of_unknown

_BUILTIN = {"cpu": "lezero.backends.cpu:CpuBackend", "numpy": "lezero.backends.numpy:NumpyBackend"}
_made: dict[str, Backend] = {}
_current: Backend | None = None


def _entry_points() -> dict[str, str]:
    found = dict(_BUILTIN)
    from importlib import metadata  # slow to import, and only needed when other packages are asked for

    for ep in metadata.entry_points(group="lezero.backends"):
        found.setdefault(ep.name, ep.value)
    return found


def list_backends() -> list[str]:
    """Names of all installed backends, built-in ones first."""
    return list(_entry_points())


def load_backend(name: str) -> Backend:
    """The backend `name`, made on first use."""
    if name not in _made:
        warn_of_unknown()
        known = _BUILTIN if name in _BUILTIN else _entry_points()
        if name not in known:
            raise ValueError(f"there is no backend {name!r}; installed: {', '.join(_entry_points())}")
        module, _, attribute = known[name].partition(":")
        backend = getattr(import_module(module), attribute)()
        if not backend.devices():
            raise RuntimeError(f"backend {name!r} is installed but finds no device on this machine")
        _made[name] = backend
    return _made[name]


def set_backend(name: str) -> None:
    """Run everything from now on with backend `name` (also: the environment variable ``LEZERO_BACKEND``)."""
    global _current
    _current = load_backend(name)


def get_backend() -> str:
    """The name of the backend in use."""
    return current().name


def current() -> Backend:
    global _current
    if _current is None:
        chosen = os.environ.get("LEZERO_BACKEND", "").strip().lower() or "cpu"
        if chosen not in _BUILTIN and chosen not in _entry_points():
            raise KnobError(
                f"LEZERO_BACKEND={chosen!r}: there is no such backend; installed: {', '.join(list_backends())}"
            )
        _current = load_backend(chosen)
    return _current
