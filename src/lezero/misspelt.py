"""What was probably meant by a name that a public module does not have.

Every public module ends with ``suggest_names(__name__)``.  Nothing is looked up, and nothing imported, before a name is
missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

PACKAGES = (
    "lezero.nn", "lezero.nn.functional", "lezero.optim", "lezero.optim.lr_scheduler", "lezero.data", "lezero.io", "lezero.models",
    "lezero.trainer", "lezero.amp", "lezero.autograd", "lezero",
)  # fmt: skip
"""Where a name may be that is asked for elsewhere, in the order of suggestions."""


def suggest_names(module: str) -> None:
    """Give a complete module a ``__getattr__`` that says what was probably meant (from here: type checkers look for names)."""
    public = {_plain(name) for name in public_names(module)}
    here = vars(sys.modules[module])
    for name, part in here.items():
        if type(part) is ModuleType and name not in public_names(module) and _plain(name) in public:
            part.__class__ = _Part

    def __getattr__(name: str) -> Any:
        raise unknown(module, name)

    here["__getattr__"] = __getattr__


def unknown(module: str, name: str, advice: str = "") -> AttributeError:
    """The error for a name that a module does not have; `advice` says more than its spelling can."""
    if not advice and not name.startswith("_"):
        meant = _meant(module, name)
        advice = f"did you mean {' or '.join(meant)}?" if meant else ""
    return AttributeError(
        f"module {module!r} has no attribute {name!r}" + (f": {advice}" if advice else ""),
        name=name,  # without obj, so that Python adds no suggestion of its own
    )


def public_names(module: str) -> list[str]:
    m = sys.modules[module]
    return [n for n in getattr(m, "__all__", None) or dir(m) if not n.startswith("_")]


def _meant(module: str, name: str) -> list[str]:
    elsewhere = [f"{p}.{name}" for p in PACKAGES if p != module and _has(p, name)][:1]
    here = public_names(module)
    same = [n for n in here if _plain(n) == _plain(name)]
    if not same and not elsewhere:
        same = _close(name, here)
    return [*elsewhere, *(f"{module}.{n}" for n in same)]


def _has(package: str, name: str) -> bool:
    with suppress(ImportError):
        import_module(package)
        return name in public_names(package)
    return False


def _close(name: str, known: Iterable[str]) -> list[str]:
    from difflib import get_close_matches

    plain: dict[str, str] = {}
    for n in known:
        plain.setdefault(_plain(n), n)
    return [plain[n] for n in get_close_matches(_plain(name), plain, 2, 0.75)]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


class _Part(ModuleType):
    """A module with nearly the name of a class in it, such as ``optim.adam``: says so when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        package, _, name = self.__name__.rpartition(".")
        raise TypeError(f"{self.__name__} is a module: did you mean {' or '.join(_meant(package, name))}?")
