"""Interrupts at a chosen line."""

from __future__ import annotations

import sys


class BeforeLine:
    """Raises KeyboardInterrupt before the n-th line of the code objects that `of` is true of; `left` is above 0 when there were
    fewer."""

    def __init__(self, n, of):
        self.left, self.of = n, of

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(self.before)

    def trace(self, frame, event, arg):
        if event == "line" and self.of(frame.f_code):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace
