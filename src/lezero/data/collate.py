"""Making a batch of items, always by copying: what a dataset does with its buffers afterwards is its own business."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lezero.tensor import Tensor, tensor


def default_collate(items: Sequence[Any]) -> Any:
    """Stack items of the same structure into a batch with a new first dimension.

    Tensors (PyTorch's, too), arrays and numbers become tensors (Python floats the default dtype, integers int64); strings and bytes a
    list; dicts, tuples, named tuples and lists are collated member by member.

    Raises
    ------
    TypeError, ValueError
        If items differ in structure, shape or dtype, naming the place.
    """
    return collate(items, tensor)


def default_convert(item: Any) -> Any:
    """Turn the arrays and NumPy scalars in one item into tensors; what a loader with ``batch_size=None`` does."""
    return convert(item, tensor)


def collate(items: Sequence[Any], wrap: Callable[[np.ndarray], Any], where: str = "item") -> Any:
    """:func:`default_collate` with `wrap` making the leaves out of freshly stacked arrays."""
    first = items[0]
    if _is_tensor(first):
        items = [_as_array(i, where) for i in items]
        first = items[0]
    if isinstance(first, (np.ndarray, np.generic)):
        return wrap(_stack(items, where))
    if isinstance(first, (bool, int, float, complex)):
        _check_kinds(items, (bool, int, float, complex, np.generic), where)
        return wrap(_numbers(items))
    if isinstance(first, (str, bytes)):
        _check_kinds(items, (str, bytes), where)
        return list(items)
    if isinstance(first, Mapping):
        _check_kinds(items, Mapping, where)
        if any(i.keys() != first.keys() for i in items):
            raise ValueError(f"the items of a batch differ: {where} has not the same keys in all of them")
        return {key: collate([i[key] for i in items], wrap, f"{where}[{key!r}]") for key in first}
    if isinstance(first, (tuple, list)):
        _check_kinds(items, type(first), where)
        if any(len(i) != len(first) for i in items):
            lengths = sorted({len(i) for i in items})
            raise ValueError(f"the items of a batch differ: {where} has lengths {', '.join(map(str, lengths))}")
        columns = [collate(column, wrap, f"{where}[{n}]") for n, column in enumerate(zip(*items))]
        return _rebuild(first, columns)
    raise TypeError(
        f"{where} is a {type(first).__name__}, which the default collation cannot stack; it takes tensors, arrays, "
        "numbers, strings, dicts, tuples and lists. Return one of these, or give the loader a collate_fn"
    )


def convert(item: Any, wrap: Callable[[np.ndarray], Any]) -> Any:
    """:func:`default_convert` with `wrap` making the leaves."""
    if isinstance(item, (np.ndarray, np.generic)):
        return wrap(np.array(item))
    if _is_tensor(item) and not isinstance(item, Tensor):
        return wrap(tensor(item).numpy())
    if isinstance(item, Mapping):
        return {key: convert(value, wrap) for key, value in item.items()}
    if isinstance(item, (tuple, list)):
        return _rebuild(item, [convert(value, wrap) for value in item])
    return item


def wrap_arrays(batch: Any, wrap: Callable[[np.ndarray], Any]) -> Any:
    """Apply `wrap` to the arrays of a batch that is collated already (what ``gather`` returned)."""
    if isinstance(batch, np.ndarray):
        return wrap(batch)
    if isinstance(batch, Mapping):
        return {key: wrap_arrays(value, wrap) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return _rebuild(batch, [wrap_arrays(value, wrap) for value in batch])
    return batch


def _rebuild(like: Any, members: list[Any]) -> Any:
    """A named tuple, tuple or list of `members`."""
    return type(like)(*members) if hasattr(like, "_fields") else tuple(members) if isinstance(like, tuple) else members


def _is_tensor(item: Any) -> bool:
    """Whether an item is a tensor, ours or of another library."""
    return isinstance(item, Tensor) or (hasattr(item, "__dlpack__") and not isinstance(item, np.ndarray))


def _as_array(item: Any, where: str) -> np.ndarray:
    if not _is_tensor(item):
        raise TypeError(
            f"the items of a batch differ: {where} is a tensor in one and a {type(item).__name__} in another"
        )
    return (item if isinstance(item, Tensor) else tensor(item)).numpy()


def _stack(items: Sequence[Any], where: str) -> np.ndarray:
    arrays = [np.asarray(i) for i in items]
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"the items of a batch differ: {where} has shapes {', '.join(map(str, sorted(shapes)))}. Make them equal (for "
            "instance by padding or cropping), or give the loader a collate_fn"
        )
    if arrays[0].dtype.hasobject or arrays[0].dtype.kind in "SUMm":
        raise TypeError(f"{where} is an array of {arrays[0].dtype}, which no tensor can hold")
    return np.stack(arrays)


def _numbers(items: Sequence[Any]) -> np.ndarray:
    array = np.asarray(items)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"numbers {list(items)[:4]} do not fit into a tensor")
    if array.dtype.kind in "fc":
        from lezero.graph.dtype import default_dtype

        wanted = default_dtype()
        return array.astype((wanted if array.dtype.kind == "f" else wanted.to_complex()).numpy)
    return array if array.dtype.kind == "b" else array.astype(np.int64)


def _check_kinds(items: Sequence[Any], kind: Any, where: str) -> None:
    for i in items:
        if not isinstance(i, kind):
            raise TypeError(
                f"the items of a batch differ: {where} is a {type(items[0]).__name__} in one and a {type(i).__name__} in "
                "another"
            )
