"""What was probably meant by a name that a public module does not have.

Every public module ends with ``suggest_names(__name__)``, and says what to do about names that newcomers bring from PyTorch
and that no spelling finds.  Nothing is looked up, and nothing imported, before a name is missing.

``from package import name`` asks for the attribute, and then says in words of its own that it is not there, unless what was
raised is something else than an AttributeError.  So an import gets an ImportError of ours.  ``import package.name`` asks no
module: a finder behind all others says what is known.  (Of a misspelt member of a tensor or a layer Python itself says what
was probably meant, where it prints the error; a ``__getattr__`` of theirs would slow down every access.)
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from inspect import CO_VARKEYWORDS
from types import FrameType, MappingProxyType, ModuleType
from typing import Any

PUBLIC_PARTS = frozenset(
    """amp autograd cuda data debug device io models nn optim profiler runtime trainer nn.functional nn.init nn.utils
    optim.lr_scheduler optim.swa_utils data.datasets data.transforms""".split()
)
"""Modules that users know, below the package."""

PACKAGES = (
    "lezero.nn", "lezero.nn.functional", "lezero.optim", "lezero.optim.lr_scheduler", "lezero.data", "lezero.io", "lezero.models",
    "lezero.trainer", "lezero.amp", "lezero.autograd", "lezero.linalg", "lezero.fft", "lezero",
)  # fmt: skip
"""Where a name may be that is asked for elsewhere, in the order of suggestions."""

IMPORT_FROM = dis.opmap["IMPORT_FROM"]

_WEIGHTS = (
    "networks begin with random weights, and published ones are loaded into them: "
    'model.load_state_dict(lz.io.load_pth("FILE.pth")), or lz.io.load_safetensors'
)
_STEPS = "leave it out: every step is one run of fused kernels"
_REDUCTION = 'reduction="mean", "sum" or "none" says it'
ARGUMENTS = {
    "lezero.models": dict.fromkeys(("weights", "pretrained", "weights_backbone"), _WEIGHTS),
    "lezero.optim": dict.fromkeys(("foreach", "fused", "capturable"), _STEPS),
    "lezero.nn": dict.fromkeys(("size_average", "reduce"), _REDUCTION),
}
"""Package -> arguments that newcomers bring from PyTorch to its classes, and what to do instead."""


def suggest_names(module: str, elsewhere: Mapping[str, str] = MappingProxyType({})) -> None:
    """Give a complete module a ``__getattr__`` that says what was probably meant (from here: type checkers look for names).

    elsewhere : name -> what to do about it, of names whose spelling is right
    """
    public = {_plain(name) for name in public_names(module)}
    here = vars(sys.modules[module])
    for name, part in here.items():
        if type(part) is ModuleType and name not in public_names(module) and _plain(name) in public:
            part.__class__ = _Part

    def __getattr__(name: str) -> Any:
        raise unknown(module, name, elsewhere.get(name, ""))

    here["__getattr__"] = __getattr__


def unknown(module: str, name: str, advice: str = "") -> AttributeError | ImportError:
    """The error for a name that a module does not have; `advice` says more than its spelling can.

    It is called by the module's ``__getattr__``, and that by whoever asks for the name.
    """
    if not advice and not name.startswith("_"):
        meant = _meant(module, name)
        advice = f"did you mean {' or '.join(meant)}?" if meant else ""
    if _imports(sys._getframe(2)):
        said = f"cannot import name {name!r} from {module!r}" + (f": {advice}" if advice else "")
        return ImportError(said, name=module)
    return AttributeError(
        f"module {module!r} has no attribute {name!r}" + (f": {advice}" if advice else ""),
        name=name,  # without obj, so that Python adds no suggestion of its own
    )


def _imports(frame: FrameType) -> bool:
    """Whether what a frame is about is ``from … import …``."""
    at = frame.f_lasti
    return at >= 0 and frame.f_code.co_code[at] == IMPORT_FROM


class _Finder:
    """Finds no module, and says of those that lezero does not have what is known about their names."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> None:
        parent, _, name = fullname.rpartition(".")
        if fullname.split(".", maxsplit=1)[0] != "lezero" or parent not in sys.modules:
            return
        try:
            found = getattr(sys.modules[parent], name)
        except AttributeError as error:
            advice = str(error).partition(": ")[2]
            said = f"no module named {fullname!r}" + (f": {advice}" if advice else "")
            raise ModuleNotFoundError(said, name=fullname) from None
        if not isinstance(found, ModuleType):
            raise ModuleNotFoundError(
                f"no module named {fullname!r}: it is a {type(found).__name__} of {parent}; from {parent} import {name}",
                name=fullname,
            )


sys.meta_path.append(_Finder)  # type: ignore[arg-type]


def public_names(module: str) -> list[str]:
    m = sys.modules[module]
    names = getattr(m, "__all__", None) or [n for n in dir(m) if _is_ours(m, n)]
    return [n for n in names if not n.startswith("_")]


def _is_ours(module: ModuleType, name: str) -> bool:
    """Whether a name of a module without ``__all__`` is for users: no part they do not know, and nothing it imported."""
    value = vars(module).get(name)
    if isinstance(value, ModuleType):
        return value.__name__.removeprefix("lezero.") in PUBLIC_PARTS
    return value is not unknown and str(getattr(value, "__module__", None) or "lezero").startswith("lezero")


def _meant(module: str, name: str) -> list[str]:
    elsewhere = [f"{p}.{name}" for p in PACKAGES if p != module and _has(p, name)][:1]
    here = public_names(module)
    same = [n for n in here if _plain(n) == _plain(name)]
    if not same and not elsewhere:
        same = close(name, here)
    return [*elsewhere, *(f"{module}.{n}" for n in same)]


def _has(package: str, name: str) -> bool:
    with suppress(ImportError):
        import_module(package)
        return name in public_names(package)
    return False


def close(name: str, known: Iterable[str]) -> list[str]:
    """At most two of the names that are spelt nearly alike."""
    from difflib import get_close_matches

    plain: dict[str, str] = {}
    for n in known:
        plain.setdefault(_plain(n), n)
    return [plain[n] for n in get_close_matches(_plain(name), plain, 2, 0.75)]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


class SpeltArguments:
    """A class that says, of a keyword argument its constructor does not have, what was probably meant."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            _refuse_unknown(cls, kwargs)
        return super().__new__(cls)


def _refuse_unknown(cls: type, given: Iterable[str]) -> None:
    constructor = cls.__init__  # type: ignore[misc]
    accepted: tuple[str, ...] = ()
    if constructor is not object.__init__:
        code = getattr(constructor, "__code__", None)
        if code is None or code.co_flags & CO_VARKEYWORDS:  # the constructor decides
            return
        accepted = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    for name in given:
        if name not in accepted:
            raise unexpected(cls, name, accepted)


def unexpected(cls: type, name: str, accepted: Iterable[str]) -> TypeError:
    """The error for a keyword argument that a class's constructor does not have."""
    package = ".".join(cls.__module__.split(".")[:2])
    advice = ARGUMENTS.get(package, {}).get(name, "")
    if not advice:
        meant = " or ".join(map(repr, close(name, accepted)))
        advice = f"did you mean {meant}?" if meant else f"it takes {', '.join(accepted) or 'none'}"
    return TypeError(f"{cls.__name__}: there is no argument {name!r}: {advice}")


class _Part(ModuleType):
    """A module with nearly the name of a class in it, such as ``optim.adam``: says so when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        package, _, name = self.__name__.rpartition(".")
        raise TypeError(f"{self.__name__} is a module: did you mean {' or '.join(_meant(package, name))}?")
