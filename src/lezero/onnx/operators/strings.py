"""Strings, which are NumPy arrays of Python's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, on_host, operator
from lezero.tensor import Tensor, tensor


def text(array: Any) -> np.ndarray:
    """Elements as str: some files have them as bytes."""
    out = np.empty(np.shape(array), object)
    out.reshape(-1)[:] = [v.decode() if isinstance(v, bytes) else str(v) for v in np.asarray(array).flat]
    return out


@operator("StringConcat", 20, host=True)
def string_concat(_: Context, a: Any, b: Any) -> np.ndarray:
    return np.asarray(text(a) + text(b), object)


@operator("StringSplit", 20, host=True)
def string_split(_: Context, x: Any, *, delimiter: str = "", maxsplit: int = -1) -> tuple[np.ndarray, Tensor]:
    """Parts along a new last dimension, which is as long as the most parts of one element."""
    words = text(x)
    parts = [w.split(delimiter or None, maxsplit) for w in words.flat]
    counts = np.array([len(p) for p in parts], np.int64).reshape(words.shape)
    out = np.full((len(parts), int(counts.max(initial=0))), "", object)
    for row, p in zip(out, parts):
        row[: len(p)] = p
    return out.reshape(*words.shape, out.shape[1]), tensor(counts)


_CASES: dict[str, Callable[[str], str]] = {"NONE": lambda word: word, "LOWER": str.lower, "UPPER": str.upper}


@operator("StringNormalizer", 10, host=True)
def string_normalizer(
    _: Context, x: Any, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "",
    stopwords: list[str] | None = None,
) -> np.ndarray:  # fmt: skip
    """Words without stop words, in one case; Python's rules of case are those of no locale in particular."""
    words = text(x)
    if words.ndim not in (1, 2) or (words.ndim == 2 and words.shape[0] != 1):
        raise OnnxError(f"words in one row, not of shape {list(words.shape)}")
    if case_change_action not in _CASES:
        raise OnnxError(f"case_change_action is one of {', '.join(_CASES)}, not {case_change_action!r}")
    change, same = _CASES[case_change_action], _CASES["NONE" if is_case_sensitive else "LOWER"]
    stop = set(map(same, stopwords or ()))
    kept = [change(w) for w in words.flat if same(w) not in stop] or [""]
    return np.array(kept, object).reshape((1, -1) if words.ndim == 2 else -1)


@operator("RegexFullMatch", 20, host=True)
def regex_full_match(_: Context, x: Any, *, pattern: str) -> Tensor:
    """The standard has RE2's syntax; what Python's lacks of it or reads otherwise raises or may differ."""
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise OnnxError(f"the pattern {pattern!r} cannot be read: {error}") from error
    words = text(x)
    return tensor(np.array([matches(w) is not None for w in words.flat], bool).reshape(words.shape))


@operator("TfIdfVectorizer", 9, host=True)
def tf_idf_vectorizer(
    _: Context, x: Any, *, mode: str, ngram_counts: list[int], ngram_indexes: list[int], max_gram_length: int,
    max_skip_count: int, min_gram_length: int, pool_int64s: list[int] | None = None, pool_strings: list[str] | None = None,
    weights: list[float] | None = None,
) -> Tensor:  # fmt: skip
    """How often each n-gram of a pool occurs in a row."""
    rows = on_host(x)
    pool = pool_int64s if pool_strings is None else pool_strings
    grams = dict(zip(_pooled(pool or [], ngram_counts), range(len(ngram_indexes))))
    out = np.zeros((int(np.prod(rows.shape[:-1])), max(ngram_indexes, default=-1) + 1), np.float32)
    lengths = range(min_gram_length, max_gram_length + 1)
    for row, values in zip(out, (text(rows) if pool_strings else rows).reshape(len(out), -1).tolist()):
        found = Counter(g for n in lengths for g in _grams(values, n, max_skip_count) if g in grams)
        for gram, times in found.items():
            k = grams[gram]
            count = min(times, 1) if mode == "IDF" else times
            row[ngram_indexes[k]] += count if mode == "TF" or weights is None else count * weights[k]
    return tensor(out.reshape(*rows.shape[:-1], out.shape[1]))


def _pooled(pool: list[Any], starts: list[int]) -> Iterator[tuple[Any, ...]]:
    """The n-grams of a pool, all of length 1 first."""
    for n, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        yield from (tuple(pool[k : k + n]) for k in range(begin, end, n))


def _grams(values: list[Any], n: int, most_skipped: int) -> Iterator[tuple[Any, ...]]:
    """Elements at even distances, of which up to `most_skipped` more than 1."""
    for distance in range(1, most_skipped + 2 if n > 1 else 2):
        for first in range(len(values) - (n - 1) * distance):
            yield tuple(values[first : first + (n - 1) * distance + 1 : distance])
