"""Views: the same elements in another arrangement, which can be written through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from lezero.arguments import whole
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import Op, normalize_axes, normalize_axis, several_axes
from lezero.runtime.recorder import record
from lezero.runtime.writes import WRITE_BACK, note_view
from lezero.tensor.core import Core, _sizes

if TYPE_CHECKING:
    from lezero.tensor import Tensor


class Views(Core):
    """Reshaping, reordering, slicing and repeating."""

    def _as_view(self, op: Op, attrs: tuple) -> Tensor:
        view = record(op, (self,), attrs)
        note_view(view, self, op, attrs)
        return view

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one extent may be -1."""
        wanted = _sizes(shape)
        have = self.shape
        if -1 in wanted:
            known = prod(d for d in wanted if d != -1)
            total = prod(have)
            if wanted.count(-1) > 1:
                raise ValueError(f"reshape: only one extent may be -1, got {wanted}")
            if known == 0 or total % known != 0:
                raise ValueError(
                    f"reshape: {tuple(map(int, have))} has {int(total)} elements, which {wanted} cannot hold"
                )
            wanted = tuple(total // known if d == -1 else d for d in wanted)
        return self._as_view(OPS["reshape"], (wanted,))

    view = reshape

    def view_as(self, other: Tensor) -> Tensor:
        """``reshape`` to the shape of `other`."""
        return self.reshape(other.shape)

    reshape_as = view_as

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The dimensions from `start_dim` to `end_dim`, both included, as one."""
        n = self.ndim
        if not n:
            return self.reshape(1)
        a, b = normalize_axis("flatten", start_dim, n), normalize_axis("flatten", end_dim, n)
        if a > b:
            raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
        s = self.shape
        return self._as_view(OPS["reshape"], ((*s[:a], prod(s[a : b + 1]), *s[b + 1 :]),))

    def ravel(self) -> Tensor:
        """All dimensions as one."""
        return self.reshape(-1)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """Dimension `dim` as several of the given sizes, of which one may be -1."""
        d, s = normalize_axis("unflatten", dim, self.ndim), self.shape
        sizes = tuple(sizes)
        if -1 in sizes:
            known = prod(x for x in sizes if x != -1)
            sizes = tuple(s[d] // known if x == -1 else x for x in sizes)
        return self.reshape((*s[:d], *sizes, *s[d + 1 :]))

    def permute(self, *dims: Any) -> Tensor:
        """The dimensions in another order: each is named once, as ints or as one sequence."""
        order = _sizes(dims)
        n = self.ndim
        axes = tuple(normalize_axis("permute", a, n) for a in order)
        if sorted(axes) != list(range(n)):
            raise ValueError(f"permute: {order} does not name each of the {n} dimensions once")
        return self._as_view(OPS["permute"], (axes,))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two dimensions exchanged."""
        n = self.ndim
        a, b = normalize_axis("transpose", dim0, n), normalize_axis("transpose", dim1, n)
        axes = list(range(n))
        if n:
            axes[a], axes[b] = axes[b], axes[a]
        return self._as_view(OPS["permute"], (tuple(axes),))

    swapaxes = swapdims = transpose

    def t(self) -> Any:
        """A matrix transposed; vectors and single numbers as they are.  ValueError for more dimensions."""
        if self.ndim > 2:
            raise ValueError(f"t(): for at most 2 dimensions, this tensor has {self.ndim}; use .mT or transpose(a, b)")
        return self if self.ndim < 2 else self.transpose(0, 1)

    @property
    def T(self) -> Tensor:
        """All dimensions in reverse order."""
        return self.permute(tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Tensor:
        """Matrices transposed: the last two dimensions exchanged."""
        return self.transpose(-2, -1)

    @property
    def mH(self) -> Tensor:
        """Matrices transposed and conjugated."""
        return self.mT.conj() if self.is_complex() else self.mT

    def adjoint(self) -> Tensor:
        """``mH``, as a method."""
        return self.mH

    def movedim(self, source: Any, destination: Any) -> Tensor:
        """Dimensions `source` moved to the places `destination`; the others keep their order."""
        n = self.ndim
        src = [normalize_axis("movedim", a, n) for a in ([source] if isinstance(source, int) else source)]
        dst = [
            normalize_axis("movedim", a, n) for a in ([destination] if isinstance(destination, int) else destination)
        ]
        if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
            raise ValueError(
                f"movedim: as many different dimensions to as from are needed, got {source} and {destination}"
            )
        order: list = [None] * n
        for s, d in zip(src, dst):
            order[d] = s
        rest = iter(i for i in range(n) if i not in src)
        return self.permute(tuple(next(rest) if o is None else o for o in order))

    def expand(self, *sizes: Any) -> Tensor:
        """Repeat extents of 1 without copying; -1 leaves an extent as it is."""
        wanted, have = _sizes(sizes), self.shape
        extra = len(wanted) - len(have)
        if extra < 0:
            raise ValueError(f"expand: {wanted} has fewer dimensions than {tuple(map(int, have))}")
        shape = tuple((have[i - extra] if i >= extra else -1) if d == -1 else d for i, d in enumerate(wanted))
        return self._as_view(OPS["expand"], (shape,))

    def expand_as(self, other: Tensor) -> Tensor:
        """``expand`` to the shape of `other`."""
        return self.expand(other.shape)

    def broadcast_to(self, *size: Any, shape: Sequence[int] | None = None) -> Tensor:
        """``expand``, with the shape as ints, as one sequence, or by name."""
        return self.expand(*(size if shape is None else (shape,)))

    def squeeze(self, dim: Any = None) -> Tensor:
        """Without the dimensions of extent 1: all of them, or those of them that are given."""
        s = self.shape
        axes = normalize_axes(
            "squeeze", dim if dim is None or isinstance(dim, int) else several_axes("squeeze", dim), len(s)
        )
        return self._as_view(OPS["reshape"], (tuple(d for i, d in enumerate(s) if not (i in axes and d == 1)),))

    def unsqueeze(self, dim: int) -> Tensor:
        """With a dimension of extent 1 before dimension `dim`."""
        s = self.shape
        d = normalize_axis("unsqueeze", dim, len(s) + 1)
        return self._as_view(OPS["reshape"], ((*s[:d], 1, *s[d:]),))

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """`length` elements from `start` on along `dim`; ValueError where there are not as many."""
        d = normalize_axis("narrow", dim, self.ndim)
        if not self.ndim:
            raise ValueError("narrow: a tensor of one dimension or more is needed")
        if not -self.shape[d] <= start <= self.shape[d]:
            raise IndexError(
                f"narrow: start {start} is out of range for the extent {int(self.shape[d])} of dimension {d}"
            )
        start = start + self.shape[d] if start < 0 else start
        index: list[Any] = [slice(None)] * self.ndim
        index[d] = slice(start, start + length)
        part = self[tuple(index)]
        if int(length) < 0 or int(part.shape[d]) != int(length):
            raise ValueError(
                f"narrow: {length} elements from {start} on are not within the extent {int(self.shape[d])} of dimension {d}"
            )
        return part

    def select(self, dim: int, index: int) -> Tensor:
        """The part at position `index` of dimension `dim`, without that dimension."""
        at: list[Any] = [slice(None)] * self.ndim
        at[normalize_axis("select", dim, self.ndim)] = index
        return self[tuple(at)]

    def flip(self, *args: Any, dims: Any = None) -> Tensor:
        """Turned round along the dimensions given, one by one or together."""
        order = _sizes(args if dims is None else (dims,))
        return record(OPS["flip"], (self,), (normalize_axes("flip", order, self.ndim),))

    def split(self, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
        """In parts of one size, the last perhaps smaller, or of the sizes given."""
        size = split_size
        d = normalize_axis("split", dim, self.ndim)
        total = int(self.shape[d])
        if isinstance(size, (tuple, list)):
            sizes = [whole("split: a size", n, 0) for n in size]
        else:
            size = whole("split: the size", size, 1)
            sizes = [min(size, total - i) for i in range(0, total, size)] or [0]
        if sum(sizes) != total:
            raise ValueError(f"split: sizes {sizes} do not add up to the extent {total} of dimension {dim}")
        if type(self.shape[d]) is int and 0 not in sizes and len(sizes) > 1:
            return self._pieces(d, sizes)
        out, at = [], 0
        for n in sizes:
            out.append(self.narrow(d, at, n))
            at += n
        return tuple(out)

    def _pieces(self, d: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """``split`` without a look at what an index may be: the gates of a recurrent layer's steps took half of their recording."""
        from lezero.indexing import sliced

        shape = self.shape
        before, after = (0,) * d, (0,) * (self.ndim - d - 1)
        steps = (1,) * self.ndim
        out, at = [], 0
        for n in sizes:
            out.append(sliced(self, ((*before, at, *after), (*shape[:d], at + n, *shape[d + 1 :]), steps)))
            at += n
        return tuple(out)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """In as many parts of equal extent along `dim`, the last perhaps smaller; there may be fewer."""
        total = int(self.shape[normalize_axis("chunk", dim, self.ndim)])
        return self.split(max(1, -(-total // whole("chunk: the number of chunks", chunks, 1))), dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """The parts along `dim`, without that dimension."""
        return tuple(self.select(dim, i) for i in range(int(self.shape[normalize_axis("unbind", dim, self.ndim)])))

    def repeat(self, *sizes: Any) -> Tensor:
        """Copies one after the other: how many along each dimension; ones in front make new dimensions."""
        reps = _sizes(sizes)
        if len(reps) < self.ndim or any(type(r) is int and r < 0 for r in reps):
            raise ValueError(
                f"repeat: a count of 0 or more for each of the {self.ndim} dimensions is needed, got {reps}"
            )
        s = (1,) * (len(reps) - self.ndim) + tuple(self.shape)
        split = self.reshape(tuple(x for d in s for x in (1, d))).expand(
            tuple(x for r, d in zip(reps, s) for x in (r, d))
        )
        return split.reshape(tuple(r * d for r, d in zip(reps, s)))

    def __getitem__(self, index: Any) -> Tensor:
        from lezero.indexing import get

        return get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from lezero.indexing import put

        put(self, index, value)


# -- how writing through a view reaches what it is a view of ---------------------------------------------------------


def _back(name: str) -> Callable:
    def register(rule: Callable) -> Callable:
        WRITE_BACK[name] = rule
        return rule

    return register


@_back("detach")
def _(base: Tensor, view: Tensor) -> Tensor:
    return record(OPS["identity"], (view,), ())


@_back("reshape")
def _(base: Tensor, view: Tensor, shape: tuple) -> Tensor:
    return record(OPS["reshape"], (view,), (tuple(base.shape),))


@_back("permute")
def _(base: Tensor, view: Tensor, axes: tuple) -> Tensor:
    return record(OPS["permute"], (view,), (tuple(axes.index(i) for i in range(len(axes))),))


@_back("slice")
def _(base: Tensor, view: Tensor, starts: tuple, stops: tuple, steps: tuple) -> Tensor:
    return record(OPS["slice_update"], (base, view), (starts, stops, steps))
