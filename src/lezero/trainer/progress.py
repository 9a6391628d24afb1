"""Showing how a fit or an evaluation goes: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

_REFRESH_S = 0.2


class Silent:
    """Shows nothing."""

    def begin(self, title: str, total: int | None, done: int = 0) -> None:
        pass

    def due(self) -> bool:
        """Whether it is time to show new numbers (reading them has a price)."""
        return False

    def advance(self, done: int, logs: Mapping[str, float] | None = None) -> None:
        pass

    def end(self, summary: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines(Silent):
    """One line when something ends: for log files and pipes."""

    def __init__(self, console: Any) -> None:
        self._console = console

    def end(self, summary: str = "") -> None:
        if summary:
            self.say(summary)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Bar(Lines):
    """A bar that moves, with the running means and the time left."""

    def __init__(self, console: Any) -> None:
        super().__init__(console)
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[logs]}", markup=False),
            console=console,
            transient=True,
        )
        self._task: Any = None
        self._shown = 0.0

    def begin(self, title: str, total: int | None, done: int = 0) -> None:
        self._progress.start()
        self._task = self._progress.add_task(title, total=total, completed=done, logs="")

    def due(self) -> bool:
        return time.monotonic() - self._shown > _REFRESH_S

    def advance(self, done: int, logs: Mapping[str, float] | None = None) -> None:
        if logs is not None:
            self._progress.update(self._task, completed=done, logs=formatted(logs))
            self._shown = time.monotonic()

    def end(self, summary: str = "") -> None:
        self.close()
        super().end(summary)

    def close(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._progress.stop()


def make(progress: bool) -> Silent:
    if not progress:
        return Silent()
    from rich.console import Console

    console = Console()
    return Bar(console) if console.is_terminal else Lines(console)


def formatted(logs: Mapping[str, float]) -> str:
    """``loss 0.1234  accuracy 97.1 %``"""
    return "  ".join(
        f"{name} {100 * value:.1f} %" if "accuracy" in name else f"{name} {value:.4g}" for name, value in logs.items()
    )
