"""Further methods of tensors, and the functions of linear algebra that PyTorch has at its top level (see ``composed``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lezero import linalg
from lezero.graph.dtype import complex64, complex128
from lezero.linalg.elimination import lu_unpack  # noqa: F401 -- installed by name
from lezero.linalg.reflections import geqrf, ormqr  # noqa: F401 -- installed by name
from lezero.linalg.triangular import QR
from lezero.ops.base import REGISTRY as OPS
from lezero.ops.base import normalize_axis
from lezero.placed import scatter_reduce
from lezero.rearranged import index_put, nonzero
from lezero.runtime.recorder import record
from lezero.runtime.recording import STATE
from lezero.runtime.writes import adopt
from lezero.tensor import Tensor, full
from lezero.tensor.computing import also_of_scalars

# -- linear algebra ---------------------------------------------------------------------------------------------------

_vector_norm = Tensor.norm


def norm(self: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The `p`-norm of all elements, or along dimensions; "nuc" is the sum of singular values of matrices."""
    if p == "nuc":
        return linalg.matrix_norm(self, "nuc", (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return _vector_norm(self, p, dim, keepdim, dtype)


Tensor.norm = norm  # type: ignore[assignment, method-assign]
inverse, det, logdet, slogdet = linalg.inv, linalg.det, linalg.logdet, linalg.slogdet
cholesky, matrix_exp, matrix_power = linalg.cholesky, linalg.matrix_exp, linalg.matrix_power


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse; see ``linalg.pinv``."""
    return linalg.pinv(input, rtol=rcond)


def qr(input: Tensor, some: bool = True) -> QR:
    """See ``linalg.qr``; `some` is its mode "reduced", otherwise "complete"."""
    return linalg.qr(input, "reduced" if some else "complete")


class UpToV(NamedTuple):
    """``U @ diag(S) @ V.mH``."""

    U: Tensor
    S: Tensor
    V: Tensor


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> UpToV:
    """See ``linalg.svd``; the right singular vectors are columns here."""
    U, S, Vh = linalg.svd(input, full_matrices=not some)
    return UpToV(U, S, Vh.mH) if compute_uv else UpToV(U.detach() * 0, S, Vh.mH.detach() * 0)


def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix of which `input` is the Cholesky factor."""
    factor = input.triu() if upper else input.tril()
    return linalg.inv(factor.mH @ factor if upper else factor @ factor.mH)


def cholesky_solve(input: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """X with ``A @ X = input``, `input2` being the Cholesky factor of A."""
    first = linalg.solve_triangular(input2.mH if upper else input2, input, upper=False)
    return linalg.solve_triangular(input2 if upper else input2.mH, first, upper=True)


class TriangularSolution(NamedTuple):
    """The solution, and the matrix as it was given."""

    solution: Tensor
    cloned_coefficient: Tensor


def triangular_solve(
    input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """X with ``A @ X = input`` (``A.mT @ X`` where `transpose`), of one triangle of A."""
    matrix, above = (A.mT, not upper) if transpose else (A, upper)
    return TriangularSolution(
        linalg.solve_triangular(matrix, input, upper=above, unitriangular=unitriangular), A.clone()
    )


def lu(input: Tensor, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """(both triangles in one matrix, rows exchanged); see ``linalg.lu_factor``.  `get_infos` adds those of ``lu_factor_ex``."""
    found = linalg.lu_factor_ex(input, pivot=pivot)
    return tuple(found) if get_infos else tuple(found)[:2]


def lu_solve(input: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """X with ``A @ X = input``, of A's ``lu``."""
    return linalg.lu_solve(LU_data, LU_pivots, input)


orgqr = linalg.householder_product

# -- elements ---------------------------------------------------------------------------------------------------------


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """0 from -lambd to lambd, the element itself beyond."""
    return record(OPS["hardshrink"], (input,), (lambd,))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x above 0, else weight · x, with one weight or one a channel (dimension 1)."""
    if weight.ndim > 1 or (weight.numel() > 1 and (input.ndim < 2 or input.shape[1] != weight.numel())):
        raise ValueError(
            f"prelu: one weight, or one for each channel (dimension 1), is needed; got {tuple(weight.shape)} for an input "
            f"{tuple(input.shape)}"
        )
    if weight.numel() == 1:
        weight = weight.reshape(())
    elif weight.ndim:
        weight = weight.reshape(-1, *(1,) * (input.ndim - 2))
    return record(OPS["prelu"], (input, weight), ())


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """With `source` at positions in row-major order, or added there."""
    return index_put(input.reshape(-1), (index.reshape(-1),), source.reshape(-1), accumulate).reshape(input.shape)


@also_of_scalars
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Parts of `source` along `dim` reduced into those of `input` at `index`; see ``scatter_reduce``."""
    d = normalize_axis("index_reduce", dim, input.ndim)
    along = index.reshape((1,) * d + (-1,) + (1,) * (input.ndim - d - 1)).expand(source.shape)
    return scatter_reduce(input, d, along, source, reduce, include_self=include_self)


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of ``nonzero()``, filled up with `fill_value`."""
    if size < 0:
        raise ValueError(f"nonzero_static: size is 0 or more, got {size}")
    found = nonzero(input)
    have = min(size, int(found.shape[0]))
    out = full((size, input.ndim), fill_value, dtype=found.dtype)
    out[:have] = found[:have]
    return out


# -- shapes -----------------------------------------------------------------------------------------------------------


def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """``chunk``."""
    return input.chunk(chunks, dim)


def unsafe_split(input: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """``split``."""
    return input.split(split_size, dim)


def unsafe_split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """``split``, with the size of each part."""
    return input.split(split_sizes, dim)


def cfloat(input: Tensor) -> Tensor:
    """As complex64."""
    return input._cast(complex64)


def cdouble(input: Tensor) -> Tensor:
    """As complex128."""
    return input._cast(complex128)


def dim_order(input: Tensor) -> tuple[int, ...]:
    """All dimensions, outermost first: every tensor is row-major to the user."""
    return tuple(range(input.ndim))


def is_set_to(input: Tensor, tensor: Tensor) -> bool:
    """Whether both are one tensor."""
    return input is tensor


def _in_place(name: str) -> Any:
    """The method `name`, which gives the tensor itself another shape."""

    def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self._base is not None or any(r() is not None for r in self._views or ()):
            raise RuntimeError(
                f"{name}_: a view, and what has views, keeps its shape; use the result of {name}() instead"
            )
        if self._requires_grad and STATE.grad_mode:
            raise RuntimeError(f"{name}_: a leaf that requires a gradient keeps its shape under grad mode")
        with_own_node = record(OPS["identity"], (self,), ())  # a view of this, and not of the tensor
        adopt(self, getattr(with_own_node, name)(*args, **kwargs).clone())
        if self._requires_grad:
            self.requires_grad_(True)
        return self

    write.__name__ = name + "_"
    write.__doc__ = f"``{name}``, in place; for tensors that are no views and have none."
    return write


def _never(name: str) -> Any:
    def answer(self: Tensor) -> bool:
        """False: a tensor is dense, and belongs to one process."""
        return False

    answer.__name__ = name
    return answer


for _name in "squeeze swapaxes swapdims t transpose unsqueeze".split():
    setattr(Tensor, _name + "_", _in_place(_name))
for _name in "is_distributed is_shared is_coalesced".split():
    setattr(Tensor, _name, _never(_name))
Tensor.H = property(lambda self: self.mH, doc="A matrix transposed and conjugated.")  # type: ignore[attr-defined]
Tensor.output_nr = property(lambda self: 0, doc="0: operations have one result.")  # type: ignore[attr-defined]

METHODS = """
cdouble cfloat cholesky cholesky_inverse cholesky_solve det dim_order hardshrink geqrf index_reduce inverse is_set_to logdet lu lu_solve
matrix_exp matrix_power nonzero_static orgqr ormqr pinverse prelu put qr slogdet svd triangular_solve unsafe_chunk unsafe_split
unsafe_split_with_sizes
"""  # which are methods of Tensor too
IN_PLACE = """
index_reduce put
"""  # which of them have a form that writes in place
FUNCTIONS = """
cholesky cholesky_inverse cholesky_solve det geqrf index_reduce inverse logdet lu lu_solve lu_unpack matrix_exp matrix_power nonzero_static orgqr ormqr pinverse put qr slogdet
svd
triangular_solve unsafe_chunk unsafe_split unsafe_split_with_sizes
"""  # for the top level
