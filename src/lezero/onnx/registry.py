"""Which function computes an operator, by domain, name and version.

An operator's function takes a :class:`Context`, the operands in the standard's order (None for one that is left out) and the
attributes as keywords, and gives its result, or a tuple of them.  Where the standard changed an operator, a function is
registered for each version from which on it holds (``since``).

Operands are tensors.  Shapes, and what is computed from them, are *host values*: small NumPy arrays, of Python integers where
an extent may be a symbol, so that a shape is known while the graph is being recorded.  Functions registered with ``host=True``
take operands of either sort as they come; for all others host values become tensors first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lezero.graph.dtype import as_dtype
from lezero.onnx.program import Body, Call
from lezero.tensor import Tensor, tensor


@dataclass(frozen=True)
class Operator:
    since: int
    compute: Callable[..., Any]
    host: bool
    on_host: Callable[..., Any] | None
    fixed: frozenset[int]


_operators: dict[tuple[str, str], list[Operator]] = {}


def operator(
    name: str, since: int = 1, *, domain: str = "", host: bool = False, on_host: Callable[..., Any] | None = None,
    fixed: Sequence[int] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Register a function (see the module).

    on_host : what computes it where all operands are host values, as NumPy would; called without a context
    fixed : positions of operands that are never trained, such as running statistics and scales
    """

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        versions = _operators.setdefault((domain, name), [])
        versions.append(Operator(since, compute, host, on_host, frozenset(fixed)))
        versions.sort(key=lambda o: o.since)
        return compute

    return register


def find(domain: str, name: str, version: int) -> Operator | None:
    """The function for an operator in a version of its domain's set, if there is one."""
    versions = _operators.get((domain, name), [])
    k = bisect_right([o.since for o in versions], version)
    return versions[k - 1] if k else None


def known_domains() -> set[str]:
    return {domain for domain, _ in _operators}


class Context:
    """What a function may ask besides its operands.

    call : the node
    version : of the operator set
    run : (body, operands, outer values by name) -> the body's results
    converted : dtypes that stand for those that the file names, where its parameters have been converted
    """

    def __init__(
        self, call: Call, version: int, run: Callable[[Body, Sequence[Any]], list[Any]], training: bool,
        converted: Mapping[np.dtype, np.dtype],
    ):  # fmt: skip
        self.call, self.version, self.run, self.training, self.converted = call, version, run, training, converted

    def wanted(self, k: int) -> bool:
        """Whether the node's result `k` is used."""
        return len(self.call.outputs) > k and bool(self.call.outputs[k])


def on_device(value: Any) -> Any:
    """A host value as a tensor; lists element by element, and what has no tensor type (strings, small floats) as it is."""
    if isinstance(value, list):
        return [on_device(v) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == object and value.size and all(isinstance(v, int) for v in value.flat):
        value = value.astype(np.int64)
    return tensor(value) if has_tensor_type(value.dtype) else value


def on_host(value: Any) -> Any:
    """A value as a NumPy array; runs what is recorded where it has to be computed first."""
    return value.detach().numpy() if isinstance(value, Tensor) else value


def has_tensor_type(dtype: np.dtype) -> bool:
    try:
        as_dtype(dtype)
    except (TypeError, ValueError):
        return False
    return True


def dimension(axis: int, count: int) -> int:
    """The number of an axis of `count` dimensions, counted from the end where it is negative.

    Raises
    ------
    ValueError
        If there is no such axis.
    """
    if not -count <= axis < count:
        raise ValueError(f"there is no axis {axis} in {count} dimensions")
    return axis % count


def integers(value: Any) -> list[int]:
    """A one-dimensional operand of integers, such as axes or a shape."""
    array = on_host(value)
    return list(array.flat) if array.dtype == object else [int(v) for v in np.atleast_1d(array).tolist()]


def host_shape(extents: Sequence[int]) -> np.ndarray:
    """Extents as a host value: symbols stay symbols."""
    if all(type(d) is int for d in extents):
        return np.array(extents, np.int64)
    out = np.empty(len(extents), object)
    out[:] = extents
    return out
