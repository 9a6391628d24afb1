"""What the standard lets a library ask about another: capabilities, devices, dtypes."""

from __future__ import annotations

import numpy as np

from lezero.array_api.dtypes import kinds_of
from lezero.array_api.operands import CPU, need_device
from lezero.graph import dtype as dt
from lezero.graph.place import Device

_STANDARD = [d for d in dt.ALL if d not in (dt.float16, dt.bfloat16)]


class __array_namespace_info__:
    """Answers about this library.  Besides the dtypes listed there are float16 and bfloat16, which the standard has not."""

    def capabilities(self) -> dict[str, bool | int]:
        """Masks and shapes that depend on values work (values are read); tensors have as many dimensions as NumPy's arrays."""
        most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": most}

    def default_device(self) -> Device:
        return CPU

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, dt.DType]:
        need_device("default_dtypes", device)
        return {
            "real floating": dt.default_dtype(),
            "complex floating": dt.default_dtype().to_complex(),
            "integral": dt.int64,
            "indexing": dt.int64,
        }

    def dtypes(self, *, device: Device | None = None, kind: str | tuple[str, ...] | None = None) -> dict[str, dt.DType]:
        """The standard's dtypes by name, of one or several kinds (see ``isdtype``)."""
        need_device("dtypes", device)
        if kind is None:
            return {d.name: d for d in _STANDARD}
        wanted = "".join(map(kinds_of, (kind,) if isinstance(kind, str) else kind))
        return {d.name: d for d in _STANDARD if d.kind in wanted}

    def devices(self) -> tuple[Device, ...]:
        return (CPU,)
