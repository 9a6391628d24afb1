"""Parts of a model that are recorded as one operation while somebody writes it down in a format that has them as such.

Otherwise they are recorded as what they are made of: a recurrent layer step by step, for instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any


class _Whole(threading.local):
    """Per thread: by name, what records a part; it gives None for what it leaves to the usual way."""

    parts: Mapping[str, Callable[..., Any]] = {}


WHOLE = _Whole()


def as_extent(n: int) -> int:
    """A number for sizes to follow from: while a model is written down, with where it comes from, if it is an extent."""
    return n if WHOLE.parts else int(n)
