"""Features of classical models (``ai.onnx.ml``)."""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.onnx.operators.strings import text
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, on_device, on_host, operator
from lezero.tensor import Tensor, tensor, where

DOMAIN = "ai.onnx.ml"


@operator("ArrayFeatureExtractor", domain=DOMAIN, host=True)
def array_feature_extractor(_: Context, x: Any, indices: Any) -> Any:
    at = np.asarray(on_host(indices)).reshape(-1)
    if isinstance(x, Tensor):
        return lz.index_select(x if x.ndim > 1 else x.unsqueeze(0), -1, tensor(at))
    return np.atleast_2d(x)[..., at]


@operator("Binarizer", domain=DOMAIN)
def binarizer(_: Context, x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return (x > threshold).to(x.dtype)


@operator("Scaler", domain=DOMAIN)
def scaler(_: Context, x: Tensor, *, offset: list[float] | None = None, scale: list[float] | None = None) -> Tensor:
    x = x.float()
    if offset is not None:
        x = x - tensor(offset)
    return x if scale is None else x * tensor(scale)


@operator("Imputer", domain=DOMAIN)
def imputer(
    _: Context, x: Tensor, *, imputed_value_floats: list[float] | None = None, imputed_value_int64s: list[int] | None = None,
    replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Tensor:  # fmt: skip
    if imputed_value_floats is not None:
        wanted = lz.isnan(x) if np.isnan(replaced_value_float) else x == replaced_value_float
    else:
        wanted = x == replaced_value_int64
    values = imputed_value_int64s if imputed_value_floats is None else imputed_value_floats
    return where(wanted, tensor(values, dtype=x.dtype), x)


@operator("LabelEncoder", domain=DOMAIN, host=True)
def label_encoder(
    _: Context, x: Any, *, default_float: float = -0.0, default_int64: int = -1, default_string: str = "_Unused",
    default_tensor: np.ndarray | None = None, classes_strings: list[str] | None = None, **tables: Any,
) -> Any:  # fmt: skip
    array = on_host(x)
    strings = array.dtype.kind in "OSU"
    if classes_strings is not None:  # version 1 maps between words and their positions
        numbers = list(range(len(classes_strings)))
        keys, values = (classes_strings, numbers) if strings else (numbers, classes_strings)
    else:
        keys, values = _table(tables, "keys"), _table(tables, "values")
    default, dtype = _default(values, default_tensor, default_float, default_int64, default_string)
    found = dict(zip(map(_key, keys), values))
    labels = [found.get(_key(k), default) for k in (text(array) if strings else array).reshape(-1).tolist()]
    return on_device(np.array(labels, dtype).reshape(array.shape))


def _key(value: Any) -> Any:
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def _table(tables: dict[str, Any], name: str) -> list[Any]:
    for kind in ("strings", "int64s", "floats", "tensor"):
        if (values := tables.get(f"{name}_{kind}")) is not None:
            if kind == "floats":
                return np.array(values, np.float32).tolist()
            return list(text(values)) if kind == "strings" else values if isinstance(values, list) else _plain(values)
    raise OnnxError(f"no {name} are given")


def _plain(array: np.ndarray) -> list[Any]:
    return list(text(array).reshape(-1)) if array.dtype.kind in "OSU" else array.reshape(-1).tolist()


def _default(values: list[Any], given: np.ndarray | None, number: float, integer: int, word: str) -> tuple[Any, Any]:
    """The label of what is no key, and the type of labels."""
    if given is not None:
        return _plain(given)[0], object if given.dtype.kind in "OSU" else given.dtype
    if any(isinstance(v, str) for v in values):
        return word, object
    return (number, np.float32) if any(isinstance(v, float) for v in values) else (integer, np.int64)


@operator("CategoryMapper", domain=DOMAIN, host=True)
def category_mapper(
    _: Context, x: Any, *, cats_int64s: list[int], cats_strings: list[str], default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:  # fmt: skip
    array = on_host(x)
    if array.dtype.kind in "OSU":
        numbers = dict(zip(cats_strings, cats_int64s))
        found = [numbers.get(w, default_int64) for w in text(array).reshape(-1)]
        return on_device(np.array(found, np.int64).reshape(array.shape))
    words = dict(zip(cats_int64s, cats_strings))
    return np.array([words.get(int(k), default_string) for k in array.reshape(-1)], object).reshape(array.shape)


@operator("OneHotEncoder", domain=DOMAIN, host=True)
def one_hot_encoder(
    _: Context, x: Any, *, cats_int64s: list[int] | None = None, cats_strings: list[str] | None = None, zeros: int = 1
) -> Any:
    if cats_strings is not None:
        found = text(on_host(x))[..., None] == np.array(cats_strings, object)
    elif isinstance(x, Tensor) and zeros:
        return (x.to(lz.int64).unsqueeze(-1) == tensor(np.array(cats_int64s, np.int64))).float()
    else:
        found = np.asarray(on_host(x)).astype(np.int64)[..., None] == np.array(cats_int64s)
    if not zeros and not found.any(-1).all():
        raise OnnxError("a value is none of the categories")
    return on_device(found.astype(np.float32))


@operator("Normalizer", domain=DOMAIN)
def normalizer(_: Context, x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Rows divided by their largest element, by the sum of magnitudes, or by the length; zeros stay."""
    x = x.float()
    if norm == "MAX":
        size = lz.amax(x, -1, keepdim=True)
    elif norm == "L1":
        size = lz.sum(lz.abs(x), -1, keepdim=True)
    else:
        size = lz.sqrt(lz.sum(x * x, -1, keepdim=True))
    return x / where(size == 0, 1.0, size)


@operator("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(_: Context, *xs: Tensor, inputdimensions: list[int] | None = None) -> Tensor:
    rows = [x.float() if x.ndim > 1 else x.float().unsqueeze(0) for x in xs]
    return lz.cat([lz.reshape(r, (r.shape[0], -1)) for r in rows], 1)


# -- maps -------------------------------------------------------------------------------------------------------------


@operator("ZipMap", domain=DOMAIN, host=True)
def zip_map(
    _: Context, x: Any, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None
) -> list[dict[Any, float]]:
    labels = classlabels_strings or classlabels_int64s or []
    return [dict(zip(labels, row)) for row in np.atleast_2d(on_host(x)).tolist()]


@operator("DictVectorizer", domain=DOMAIN, host=True)
def dict_vectorizer(
    _: Context, x: dict[Any, Any], *, int64_vocabulary: list[int] | None = None,
    string_vocabulary: list[str] | None = None,
) -> Any:  # fmt: skip
    """The values of a map in the vocabulary's order, 0 for a key that it lacks."""
    words = string_vocabulary or int64_vocabulary or []
    values = list(x.values())
    if values and isinstance(values[0], str):
        return np.array([[x.get(w, "") for w in words]], object)
    dtype = np.float32 if any(isinstance(v, float) for v in values) else np.asarray(values).dtype
    return on_device(np.array([[x.get(w, 0) for w in words]], dtype))
