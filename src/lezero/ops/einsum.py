"""Sums of products by index names: parsed once, then carried out as sums, permutations and matrix products."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from lezero.ops.base import Composite, op
from lezero.ops.matmul import dot
from lezero.ops.movement import diagonal, diagonal_embed, expand, permute, reshape
from lezero.ops.reduce import sum
from lezero.ops.rules import conj, shown, wide

# Names for the dimensions an ellipsis stands for, counted from the right; no letter of an equation can be one of them.
_ELLIPSIS = tuple(chr(0x2460 + i) for i in range(20))


@lru_cache(1024)
def parse(equation: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """The dimension names of each operand and of the result, ellipses and an implicit result spelled out."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"einsum: {equation!r} names {len(terms)} operands, {len(ranks)} were given")
    names = []
    for k, (term, rank) in enumerate(zip(terms, ranks)):
        letters = term.replace("...", "", 1)
        if not ((letters.isascii() and letters.isalpha()) or not letters):
            raise ValueError(f"einsum: {term!r} in {equation!r} is not made of letters and at most one '...'")
        hidden = rank - len(letters)
        if hidden < 0 or (hidden and letters == term):
            raise ValueError(
                f"einsum: operand {k} has {rank} dimensions, {term!r} in {equation!r} names {len(letters)}"
            )
        names.append(term.replace("...", "".join(reversed(_ELLIPSIS[:hidden]))))
    seen = "".join(names)
    dots = "".join(c for c in reversed(_ELLIPSIS) if c in seen)
    if arrow:
        out = right.replace("...", dots, 1)
        if len(set(out)) != len(out) or set(out) - set(seen):
            raise ValueError(f"einsum: the result {right!r} of {equation!r} repeats a name or has one no operand has")
    else:
        out = dots + "".join(sorted(c for c in set(seen) - set(dots) if seen.count(c) == 1))
    return tuple(names), out


def _extents(equation, names, shapes):
    """Name -> extent; extents of 1 broadcast."""
    extents = {}
    for term, shape in zip(names, shapes):
        for c, d in zip(term, shape):
            e = extents.setdefault(c, d)
            diagonal = term.count(c) > 1
            if e == 1 and not diagonal:
                extents[c] = d
            elif d != e and (d != 1 or diagonal):
                raise ValueError(
                    f"einsum: in {equation!r} the dimension {c!r} is {int(e)} for one operand and {int(d)} for another; "
                    f"shapes are {', '.join(map(shown, shapes))}"
                )
    return extents


@op("einsum", onnx="Einsum")
class einsum(Composite):
    """Products summed over the index names that the result does not have (Einstein's convention).

    Parameters
    ----------
    operands : one or more, of one dtype
    equation : str
        ``"bij,bjk->bik"``.  Without ``->`` the result has the names that occur once, in alphabetical order.  ``...``
        stands for dimensions that broadcast; a name repeated in one operand takes its diagonal.  Several operands are
        contracted from left to right.
    """

    attrs = {"equation": ""}
    keeps = ("operands",)

    def infer(*operands, equation):
        if any(x.dtype is not operands[0].dtype for x in operands):
            raise TypeError(
                f"einsum: operands of one dtype are needed, got {', '.join(x.dtype.name for x in operands)}"
            )
        names, out = parse(equation, tuple(len(x.shape) for x in operands))
        extents = _extents(equation, names, [x.shape for x in operands])
        return tuple(extents[c] for c in out), operands[0].dtype

    def reference(*operands, equation):
        names, out = parse(equation, tuple(x.ndim for x in operands))
        letters = {c: k for k, c in enumerate(dict.fromkeys("".join(names)))}
        args = []
        for x, term in zip(operands, names):
            args += [wide(x), [letters[c] for c in term]]
        return np.einsum(*args, [letters[c] for c in out])

    def decompose(*operands, equation):
        names, out = parse(equation, tuple(len(x.shape) for x in operands))
        extents = _extents(equation, names, [x.shape for x in operands])
        terms = [_diagonal(x, term) for x, term in zip(operands, names)]
        x, have = terms[0]
        for k, (other, theirs) in enumerate(terms[1:], 1):
            later = set(out).union(*(t for _, t in terms[k + 1 :]))
            x, have = _contract(x, have, other, theirs, later)
        x, have = _sum_out(x, have, set(out))
        x = _permuted(x, have, out)
        shape = tuple(extents[c] for c in out)
        return x if tuple(x.shape) == shape else expand(x, shape=shape)

    def gradient(dy, y, *operands, equation):
        names, out = parse(equation, tuple(len(x.shape) for x in operands))
        extents = _extents(equation, names, [x.shape for x in operands])
        grads = []
        for k, x in enumerate(operands):
            own = "".join(dict.fromkeys(names[k]))
            factors, labels = [dy], [out]
            for j, other in enumerate(operands):
                if j != k:
                    factors.append(conj(other))
                    labels.append(names[j])
            known = [c for c in own if any(c in t for t in labels)]
            g = einsum(*factors, equation=_spell(labels, known))
            # A name that only this operand has was summed alone: its gradient is the same at every position.
            g = reshape(g, shape=tuple(g.shape[known.index(c)] if c in known else 1 for c in own))
            sizes = tuple(x.shape[names[k].index(c)] for c in own)
            wide_axes = tuple(
                i for i, (c, d) in enumerate(zip(own, sizes)) if d == 1 and g.shape[i] != 1 and extents[c] != 1
            )
            if wide_axes:
                g = sum(g, axes=wide_axes, keepdim=True)
            grads.append(
                _diagonal_gradient(g if tuple(g.shape) == sizes else expand(g, shape=sizes), own, names[k], x.shape)
            )
        return tuple(grads)


def _spell(labels, out):
    """An equation of plain letters for terms that may hold the names of hidden dimensions."""
    letters = {}
    for c in "".join(labels):
        letters.setdefault(c, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[len(letters)])
    return ",".join("".join(letters[c] for c in t) for t in labels) + "->" + "".join(letters[c] for c in out)


def _diagonal(x, term):
    """Take the diagonals of repeated names."""
    while len(set(term)) != len(term):
        c = next(c for c in term if term.count(c) > 1)
        i = term.index(c)
        j = term.index(c, i + 1)
        x = diagonal(x, offset=0, axis1=i, axis2=j)
        term = term[:i] + term[i + 1 : j] + term[j + 1 :] + c
    return x, term


def _diagonal_gradient(g, own, term, shape):
    """The adjoint of :func:`_diagonal`: `g` has the distinct names `own`, the result the dimensions of `term`."""
    if len(own) == len(term):
        return _permuted(g, own, term)
    c = next(c for c in term if term.count(c) > 1)
    i = term.index(c)
    j = term.index(c, i + 1)
    rest = term[:i] + term[i + 1 : j] + term[j + 1 :] + c
    inner = (*shape[:i], *shape[i + 1 : j], *shape[j + 1 :], shape[i])
    return diagonal_embed(_diagonal_gradient(g, own, rest, inner), shape=tuple(shape), offset=0, axis1=i, axis2=j)


def _sum_out(x, have, keep):
    """Sum over the names nobody needs any more."""
    axes = tuple(i for i, c in enumerate(have) if c not in keep)
    if axes:
        x = sum(x, axes=axes, keepdim=False)
    return x, "".join(c for c in have if c in keep)


def _permuted(x, have, want):
    """Bring the names in the order of `want`, which has the same ones."""
    return x if have == want else permute(x, axes=tuple(have.index(c) for c in want))


def _contract(a, have_a, b, have_b, later):
    """The product of two operands, summed over the names that are not in `later`."""
    a, have_a = _sum_out(a, have_a, later.union(have_b))
    b, have_b = _sum_out(b, have_b, later.union(have_a))
    size_a, size_b = dict(zip(have_a, a.shape)), dict(zip(have_b, b.shape))
    shared = [c for c in have_a if c in size_b]
    # A name that is 1 on one side and longer on the other broadcasts: it belongs to the longer side alone.
    for c in shared:
        if size_a[c] != size_b[c]:
            if size_a[c] == 1:
                a, have_a = _dropped(a, have_a, c)
                b, have_b = _sum_out(b, have_b, later.union(have_a))
            else:
                b, have_b = _dropped(b, have_b, c)
                a, have_a = _sum_out(a, have_a, later.union(have_b))
    size = {**dict(zip(have_a, a.shape)), **dict(zip(have_b, b.shape))}
    shared = [c for c in have_a if c in have_b]
    batch = [c for c in shared if c in later]
    inner = [c for c in shared if c not in later]
    rows = [c for c in have_a if c not in have_b]
    columns = [c for c in have_b if c not in have_a]

    def extent(names):
        return prod(size[c] for c in names)

    lead = tuple(size[c] for c in batch)
    a = reshape(_permuted(a, have_a, "".join(batch + rows + inner)), shape=(*lead, extent(rows), extent(inner)))
    b = reshape(_permuted(b, have_b, "".join(batch + inner + columns)), shape=(*lead, extent(inner), extent(columns)))
    out = batch + rows + columns
    return reshape(dot(a, b), shape=tuple(size[c] for c in out)), "".join(out)


def _dropped(x, have, c):
    """Remove a dimension of extent 1."""
    axis = have.index(c)
    return reshape(x, shape=(*x.shape[:axis], *x.shape[axis + 1 :])), have[:axis] + have[axis + 1 :]
