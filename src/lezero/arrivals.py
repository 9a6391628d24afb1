"""What is done as soon as another library is there: its module has been imported, or is one day."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_waiting: dict[str, Callable[[], object]] = {}


class _Watch:
    """Finds nothing itself: it lets a module that is waited for be found by the others, and acts when it has been run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        action = _waiting.pop(fullname)  # while the others look for it
        try:
            spec = find_spec(fullname)
        finally:
            _waiting[fullname] = action
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            _waiting.pop(fullname, None)
            action()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


def when_imported(name: str, action: Callable[[], object]) -> None:
    """Call `action` now, if the module `name` has been imported, or else right after somebody imports it."""
    if name in sys.modules:
        action()
        return
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())  # (importlib.abc, whose subclass it might be, takes 5 ms to import)
    _waiting[name] = action
