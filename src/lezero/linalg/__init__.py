"""Linear algebra: decompositions, solutions, norms; names, arguments and results follow ``torch.linalg``.

Decompositions are computed by LAPACK, through NumPy (LU here), when they are called: the value of the operand is read, so what
has been recorded runs, and ``lz.jit`` does not capture them.  Their gradients are recorded operations like any other, and can
be differentiated again.  Matrices are the last two dimensions, others are batches; dtypes are float32, float64, complex64 and
complex128.

Formulas of gradients: M. B. Giles, "An extended collection of matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008), unless a function names another source.
"""

from numpy.linalg import LinAlgError

from lezero.composed import outer, tensordot
from lezero.linalg.checked import cholesky_ex, inv_ex, lu_factor_ex, solve_ex
from lezero.linalg.determinants import det, logdet, slogdet
from lezero.linalg.elimination import lu, lu_factor, lu_solve
from lezero.linalg.least_squares import lstsq, matrix_rank, pinv
from lezero.linalg.norms import cond, matrix_norm, norm, vector_norm
from lezero.linalg.powers import matrix_exp, matrix_power
from lezero.linalg.products import cross, diagonal, matmul, multi_dot, trace, vander, vecdot
from lezero.linalg.reflections import householder_product
from lezero.linalg.solutions import inv, solve, solve_triangular, tensorinv, tensorsolve
from lezero.linalg.spectral import eig, eigh, eigvals, eigvalsh, svd, svdvals
from lezero.linalg.triangular import cholesky, qr
from lezero.misspelt import suggest_names

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "logdet", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp",
    "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_ex",
    "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vander", "vecdot", "vector_norm",
]  # fmt: skip

suggest_names(
    __name__,
    dict.fromkeys("ldl_factor ldl_factor_ex ldl_solve".split(), "lu_factor and lu_solve take symmetric matrices, too"),
)
