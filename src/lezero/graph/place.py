"""Names of devices."""

from __future__ import annotations

import re
from typing import Any


class Device(str):
    """Where tensors are, such as ``cpu`` or ``cuda:0``: a string with ``type`` and ``index``, as ``torch.device`` has them.

    ``lz.device("cuda", 0)`` and ``lz.device("cuda:0")`` are the same.  Naming a device does not ask for it to be there.
    """

    __slots__ = ()

    def __new__(cls, name: Any, index: int | None = None) -> Device:
        text = str(name) if index is None else f"{name}:{index}"
        if not re.fullmatch(r"[a-z_]+(:\d+)?", text):
            raise ValueError(f"device: a name such as 'cpu' or 'cuda:0' is needed, got {text!r}")
        return str.__new__(cls, text)

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        number = self.partition(":")[2]
        return int(number) if number else None

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __reduce__(self) -> tuple:
        return Device, (str(self),)
