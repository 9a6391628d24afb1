"""What is done as soon as another library is there: its module has been imported, or is one day."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_waiting: dict[str, Callable[[], object]] = {}


class _Watch(MetaPathFinder):
    """Finds nothing itself: it lets a module that is waited for be found by the others, and acts when it has been run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        action = _waiting.pop(fullname)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            _waiting[fullname] = action
            return None
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            action()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


def when_imported(name: str, action: Callable[[], object]) -> None:
    """Call `action` now, if the module `name` has been imported, or else right after somebody imports it."""
    if name in sys.modules:
        action()
        return
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())
    _waiting[name] = action
