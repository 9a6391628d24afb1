"""Whatever a user can name says what it is: functions, classes, methods and properties."""

import importlib
import inspect
from types import ModuleType, SimpleNamespace

import pytest

MODULES = """
lezero lezero.amp lezero.autograd lezero.data lezero.data.datasets lezero.data.transforms lezero.debug lezero.device lezero.export
lezero.fft lezero.io lezero.linalg lezero.models lezero.nn lezero.nn.functional lezero.nn.init lezero.nn.utils
lezero.nn.utils.parametrizations lezero.nn.utils.parametrize lezero.nn.utils.rnn lezero.onnx lezero.optim
lezero.optim.lr_scheduler lezero.optim.swa_utils lezero.profiler lezero.trainer
""".split()
SAID_BY_THE_CLASS = {"forward", "extra_repr", "reset_parameters"}


def has_docstring(thing):
    if not isinstance(thing, type):
        return bool(inspect.getdoc(thing))
    doc = vars(thing).get("__doc__")
    return bool(doc) and not doc.startswith(f"{thing.__name__}(")  # what dataclasses and named tuples write themselves


def members(cls):
    """(name, every definition of it in the classes of ours that `cls` comes from)."""
    ours = [vars(c) for c in cls.__mro__ if c.__module__.startswith(("lezero", __name__))]
    for name in dict.fromkeys(n for names in ours for n in names):
        if not name.startswith("_") and name not in SAID_BY_THE_CLASS:
            yield name, [names[name] for names in ours if name in names]


def undocumented(module):
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    for name in names:
        thing = getattr(module, name)
        if not getattr(thing, "__module__", "").startswith(("lezero", __name__)):
            continue
        if inspect.isfunction(thing) and not has_docstring(thing):
            yield name
        elif isinstance(thing, type):
            if not has_docstring(thing):
                yield name
            for member, found in members(thing):
                functions = [getattr(f, "__func__", f) for f in found]
                if isinstance(functions[0], property) or inspect.isfunction(functions[0]):
                    if not any(has_docstring(f) for f in functions):
                        yield f"{name}.{member}"


@pytest.mark.parametrize("name", MODULES)
def test_what_is_public_has_a_docstring(name):
    module = importlib.import_module(name)
    assert isinstance(module, ModuleType)
    assert not list(undocumented(module))


class Silent:
    """Says nothing of its parts."""

    def method(self):
        return self

    @property
    def size(self):
        return 0

    def said(self):
        """Something."""

    def forward(self):
        return self


class Quieter(Silent):
    def said(self):
        return 1


def test_a_missing_docstring_is_found():
    found = list(undocumented(SimpleNamespace(Silent=Silent, Quieter=Quieter, undocumented=undocumented)))
    assert found == ["Quieter", "Quieter.method", "Quieter.size", "Silent.method", "Silent.size", "undocumented"]
