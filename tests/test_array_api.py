"""The array API standard: every function against array-api-strict on drawn inputs, and its signature.

`CASES` says what each function is called with; what array-api-strict has and the table has not is an error.
"""

import inspect
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lezero as lz
import lezero.array_api as xp
from conftest import EXAMPLES

strict = pytest.importorskip("array_api_strict")

DTYPES = {"f": "float32 float64", "i": "int64 int8 int32 int16", "u": "uint8 uint32 uint16 uint64", "b": "bool",
          "c": "complex64 complex128"}  # fmt: skip
SHAPES = [(2, 3), (), (4,), (0, 3), (1, 3), (2, 1, 3), (3, 0)]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 0.5, -2.5, 1.5, 3.25, -7.0, 1e-30, 30.0]


@pytest.fixture(scope="module", autouse=True)
def float64_by_default():
    """As array-api-strict has it."""
    lz.set_default_dtype(lz.float64)
    yield
    lz.set_default_dtype(lz.float32)


class Draw:
    """Arguments of one call, drawn."""

    def __init__(self, data):
        self.data = data
        self.rng = np.random.default_rng(self.data.draw(st.integers(0, 2**32 - 1)))

    def one(self, *choices):
        return self.data.draw(st.sampled_from(choices))

    def dtype(self, kinds):
        return self.one(*" ".join(DTYPES[k] for k in kinds).split())

    def shape(self, least=0, rank=None, empty=True):
        return self.one(
            *(s for s in SHAPES if len(s) >= least and rank in (None, len(s)) and (empty or np.prod(s) > 0))
        )

    def values(self, shape, dtype, special=True, low=-6):
        """An array: floats with NaN, infinities and -0.0 unless finite ones are asked for, small integers."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            return np.asarray(self.rng.integers(max(low, np.iinfo(dtype).min), 7, shape)).astype(dtype)
        if dtype.kind == "c":
            return np.asarray(self.rng.normal(size=shape) + 1j * self.rng.normal(size=shape)).astype(dtype)
        drawn = self.rng.choice(SPECIAL, shape) if special else self.rng.normal(size=shape) * 3
        return np.asarray(drawn).astype(dtype)

    def array(self, kinds, shape=None, **options):
        return self.values(self.shape() if shape is None else shape, self.dtype(kinds), **options)

    def broadcast(self, shape):
        """A shape that broadcasts with another."""
        return self.one(shape, shape[1:], tuple(1 for _ in shape), ())

    def axes(self, ndim):
        """axis of a reduction, and keepdims."""
        several = [(0, -1)] if ndim > 1 else []
        axis = self.one(None, *(range(-ndim, ndim)), (), *several)
        return {"axis": axis, "keepdims": self.one(False, True)}

    def axis(self, ndim):
        return self.one(*range(-1, ndim), *range(-ndim, -1))


def ours(x):
    return lz.tensor(x) if isinstance(x, np.ndarray) else mapped(ours, x)


def theirs(x):
    return strict.asarray(x) if isinstance(x, np.ndarray) else mapped(theirs, x)


class Type(str):
    """The name of a dtype among arguments."""


def mapped(convert, x):
    if isinstance(x, Type):
        return getattr(xp if convert is ours else strict, x)
    if isinstance(x, (list, tuple)):
        return type(x)(map(convert, x))
    return {k: convert(v) for k, v in x.items()} if isinstance(x, dict) else x


def unary(kinds, **options):
    return lambda d: ((d.array(kinds, **options),), {})


def binary(kinds, scalars=True, low=-6, **options):
    def make(d):
        dtype, shape = d.dtype(kinds), d.shape()
        kind = np.dtype(dtype).kind
        same = DTYPES[kind].split()
        x = d.values(shape, dtype, **options)
        how = d.one("arrays", "arrays", "right", "left") if scalars else "arrays"
        y = d.values(d.broadcast(shape), d.one(*same), low=low, **options)
        number = {"b": True, "i": 3, "u": 3, "f": 0.75, "c": 0.5 + 2j}[kind]
        return {"arrays": (x, y), "right": (x, number), "left": (number, y)}[how], {}

    return make


def reduction(kinds, empty=True, **extra):
    def make(d):
        x = d.array(kinds, d.shape(empty=empty), special=d.one(False, True))
        options = d.axes(x.ndim)
        for name, choices in extra.items():
            options[name] = d.one(*choices)
        return (x,), options

    return make


def along(kinds, least=1, **extra):
    """One axis of an array, and what else is drawn by name."""

    def make(d):
        x = d.array(kinds, d.shape(least=least, empty=False), special=False)
        return (x,), {"axis": d.axis(x.ndim), **{name: d.one(*choices) for name, choices in extra.items()}}

    return make


def accumulation(d):
    x = d.array("iuf", d.shape(least=1), special=False)
    return (x,), {
        "axis": d.axis(x.ndim) if x.ndim > 1 else d.one(None, 0),
        "dtype": d.one(None, Type("float64") if x.dtype.kind == "f" else Type("int64")),
        "include_initial": d.one(False, True),
    }


def extreme_position(d):
    x = d.array("iuf", d.shape(least=1, empty=False), special=False)
    return (x,), {"axis": d.one(None, *range(-x.ndim, x.ndim)), "keepdims": d.one(False, True)}


def square_matrices(d, kinds="fc"):
    """Matrices that are far from singular."""
    n, dtype = d.one(2, 3), d.dtype(kinds)
    x = d.values((*d.one((), (2,), (2, 1)), n, n), dtype, special=False)
    return x + 5 * np.eye(n, dtype=dtype)


def hermitian(d):
    x = square_matrices(d)
    return x @ x.conj().swapaxes(-1, -2) + np.eye(x.shape[-1], dtype=x.dtype)


def matrices(d, kinds="fc"):
    return d.values((*d.one((), (2,)), *d.one((2, 3), (3, 2), (3, 3))), d.dtype(kinds), special=False)


def product(d):
    dtype = d.dtype("fciu")
    a, b = d.one(((2, 3), (3, 4)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,)), ((2, 2, 3), (3, 4)), ((2, 0), (0, 3)),
                 ((0, 3), (3, 2)), ((2, 1, 2, 3), (2, 3, 2)))  # fmt: skip
    return (d.values(a, dtype, special=False), d.values(b, dtype, special=False)), {}


def transform(kinds, many=False, rank=1):
    def make(d):
        x = d.array(kinds, d.one((4,), (3, 5), (2, 3, 4)) if rank == 1 else d.one((3, 5), (2, 3, 4)), special=False)
        if many:
            axes = d.one(None, (0, 1), (-1,))
            options = {"axes": axes, "s": None if axes is None else d.one(None, (4, 3)[: len(axes)])}
        else:
            options = {"axis": d.axis(x.ndim), "n": d.one(None, 3, 6)}
        return (x,), {**options, "norm": d.one("backward", "ortho", "forward")}

    return make


def fourier_shift(d):
    x = d.array("fc", d.one((4,), (3, 5)), special=False)
    return (x,), {"axes": d.one(None, 0, -1, (0,))}


def several(least_rank=0):
    def make(d):
        kind, shape = d.one("f", "i", "b", "c"), d.shape(least=least_rank)
        return [d.array(kind, shape) for _ in range(d.one(2, 3, 1))]

    return make


def joined(least_rank, none=False):
    def make(d):
        arrays = several(least_rank)(d)
        ndim = arrays[0].ndim + (least_rank == 0)
        return (arrays,), {"axis": d.one(*([None] if none else []), *range(-ndim, ndim))}

    return make


def shifted(d):
    x = d.array("iufb")
    if not x.ndim or d.one(True, False):
        return (x, d.one(1, -2, 5)), {}
    return d.one(((x, -1), {"axis": d.axis(x.ndim)}), ((x, (1, 2)), {"axis": (0, -1)}), ((x, 2), {"axis": (0,)}))


def repeated(d):
    x = d.array("iufb", d.shape(least=1))
    axis = d.one(None, *range(-x.ndim, x.ndim))
    n = x.size if axis is None else x.shape[axis]
    return (x, d.one(2, 0, d.rng.integers(0, 3, n))), {"axis": axis}


def taken(d):
    x = d.array("iufbc", d.shape(least=1, empty=False))
    axis = d.axis(x.ndim)
    return (x, d.rng.integers(0, x.shape[axis], d.one(3, 0, 1))), {"axis": axis}


def taken_along(d):
    x = d.array("iufb", d.shape(least=1, empty=False))
    axis = d.axis(x.ndim) % x.ndim
    shape = tuple(d.one(1, 3) if i == axis else n for i, n in enumerate(x.shape))
    return (x, d.rng.integers(0, x.shape[axis], shape)), {"axis": axis}


def positions(d):
    dtype = d.dtype("fiu")
    x = np.sort(d.values((6,), dtype, special=False))
    y = d.one(x[::2] if d.one(True, False) else d.values((2, 2), dtype, special=False), {"f": 0.5}.get(x.dtype.kind, 2))
    order = d.rng.permutation(6)
    side = d.one("left", "right")
    return d.one(((x, y), {"side": side}), ((x[order], y), {"side": side, "sorter": np.argsort(order)}))


def chosen(d):
    (x, y), _ = binary("fiubc")(d)
    return (d.values(d.broadcast(np.shape(x) or np.shape(y)), "bool"), x, y), {}


def clipped(d):
    dtype = d.dtype("fiu")
    x = d.values(d.shape(), dtype)
    low, high = (-1.5, 2.0) if x.dtype.kind == "f" else (1, 4)
    array = np.full(x.shape[-1:], low, dtype)
    return (x, *d.one((low, high), (None, high), (low,), (array, high), (None, None))), {}


def made(*arguments, dtypes=("float32", "float64", "int32")):
    return lambda d: (d.one(*arguments), {"dtype": d.one(None, *map(Type, dtypes))})


def made_like(*more):
    return lambda d: ((d.array("fib"), *more), {"dtype": d.one(None, Type("float32"), Type("int16"))})


def vectors(d):
    dtype = d.dtype("fi")
    return tuple(d.values((n,), dtype) for n in d.one((2, 3), (3,), (1, 2, 3))), {"indexing": d.one("xy", "ij")}


def differences(d):
    dtype, shape = d.dtype("fi"), d.shape(least=1, empty=False)
    x, axis = d.values(shape, dtype, special=False), d.axis(len(shape))
    end = tuple(2 if i == axis % len(shape) else n for i, n in enumerate(shape))
    ends = {name: d.values(end, dtype, special=False) for name in ("prepend", "append") if d.one(True, False)}
    return (x,), {"axis": axis, "n": d.one(1, 2, 0, 5), **ends}


def expanded(d):
    x = d.array("fib")
    return (x, d.one(*range(-x.ndim - 1, x.ndim + 1))), {}


def squeezed(d):
    x = d.values((1, 3, 1), d.dtype("fib"))
    return (x,), {"axis": d.one(0, 2, -1, (0, 2), (-3, -1))}


def flipped(d):
    x = d.array("fib")
    return (x,), {"axis": d.one(None, *range(-x.ndim, x.ndim), *([(0, -1)] if x.ndim > 1 else []))}


def permuted(d):
    return (d.values((2, 1, 3), d.dtype("fi")), d.one((2, 0, 1), (1, 0, -1), (0, 1, 2))), {}


def moved(d):
    return (d.values((2, 1, 3), d.dtype("fi")), *d.one((0, -1), ((0, 1), (1, 2)), ((2, 0), (0, 1)))), {}


def reshaped(d):
    x = d.values((2, 6), d.dtype("fib"))
    return (x, d.one((3, 4), (-1,), (12, 1), (2, -1, 3))), {"copy": d.one(None, True)}


def dtype_pair(d):
    return tuple(Type(d.dtype("iufcb")) for _ in range(2)), {}


def promoting(d):
    kinds = d.one("fc", "b", "i", "u", "mixed")
    number = {"fc": 1.5, "b": True}.get(kinds, 2)
    if kinds == "mixed":  # uint64 has no common dtype with signed integers
        return (d.values((2,), d.one("uint8", "uint16", "uint32")), Type(d.dtype("i")), number), {}
    return (d.array(kinds, d.one((), (2,))), Type(d.dtype(kinds)), number), {}


def tensor_product(d):
    dtype = d.dtype("fi")
    a, b, axes = d.one(
        ((2, 3), (3, 4), 1), ((2, 3), (2, 3), 2), ((2, 3), (4,), 0), ((2, 3, 4), (4, 3), ((1, 2), (1, 0)))
    )
    return (d.values(a, dtype, special=False), d.values(b, dtype, special=False)), {"axes": axes}


def vector_products(d):
    dtype = d.dtype("fci")
    a, b, axis = d.one(((3,), (3,), -1), ((2, 3), (3,), -1), ((3, 2), (3, 1), -2), ((2, 1, 3), (4, 3), -1))
    return (d.values(a, dtype, special=False), d.values(b, dtype, special=False)), {"axis": axis}


def powers(d):
    """Integers to the power of what is not negative, others to the power of anything."""
    if d.one(True, False):
        return binary("fc")(d)
    (x, y), _ = binary("iu")(d)
    return (x, np.asarray(np.abs(y)) if isinstance(y, np.ndarray) else y), {}


def divisions(d):
    return binary("f", special=True)(d) if d.one(True, False) else binary("iu", low=1)(d)


CASES = {
    **dict.fromkeys("acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinh sqrt tan tanh "
                    "reciprocal".split(), unary("fc")),
    **dict.fromkeys("abs negative square sign isfinite isinf isnan positive conj".split(), unary("fiuc")),
    **dict.fromkeys("ceil floor round trunc".split(), unary("fiu")),
    "bitwise_invert": unary("iub"), "logical_not": unary("b"), "signbit": unary("f"),
    "imag": unary("c"), "real": unary("fc"),
    **dict.fromkeys("add subtract multiply equal not_equal".split(), binary("fiuc")),
    **dict.fromkeys("less less_equal greater greater_equal maximum minimum".split(), binary("fiu")),
    **dict.fromkeys("atan2 copysign hypot logaddexp nextafter".split(), binary("f")),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor".split(), binary("iub")),
    **dict.fromkeys("bitwise_left_shift bitwise_right_shift".split(), binary("iu", low=0)),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), binary("b")),
    "divide": binary("fc"), **dict.fromkeys("floor_divide remainder".split(), divisions), "pow": powers, "clip": clipped,
    "all": reduction("fib"), "any": reduction("fib"), "count_nonzero": reduction("fib"),
    "max": reduction("fiu", empty=False), "min": reduction("fiu", empty=False), "mean": reduction("fc", empty=False),
    "sum": reduction("fiuc", dtype=(None, None, Type("complex128"))),
    "prod": reduction("fiuc"),
    "std": reduction("f", empty=False, correction=(0.0, 1, 0.5)), "var": reduction("f", empty=False, correction=(0.0, 1, 0.5)),
    "cumulative_sum": accumulation, "cumulative_prod": accumulation,
    "argmax": extreme_position, "argmin": extreme_position, "diff": differences,
    "argsort": along("iu", descending=(False, True)), "sort": along("iuf", descending=(False, True)),
    "nonzero": unary("fib", shape=(2, 3)), "searchsorted": positions, "where": chosen,
    "isin": lambda d: ((d.array("i"), d.one(d.array("i"), 3)), {}),
    **dict.fromkeys("unique_all unique_counts unique_inverse unique_values".split(), unary("fiub")),
    "arange": made((5,), (2, 9, 3), (5, 0, -2), (0, 0), (2, 1), dtypes=("float32", "int32", "uint8")),
    "linspace": lambda d: (d.one((0, 1, 5), (2.5, -1.0, 4), (1, 2, 1), (0.0, 1.0, 0), (1 + 2j, 3 - 1j, 3)),
                           {"endpoint": d.one(True, False)}),
    "eye": lambda d: (d.one((3,), (2, 4), (3, 2), (0, 2)), {"k": d.one(0, 1, -1, 5), "dtype": d.one(None, Type("int8"))}),
    **dict.fromkeys("zeros ones".split(), made((3,), ((2, 3),), ((),), ((0, 2),), dtypes=("bool", "uint16", "complex64"))),
    "full": lambda d: (((2, 3), d.one(1.5, 2, True, 1 + 2j)), {}),
    "full_like": made_like(1), "zeros_like": made_like(), "ones_like": made_like(), "meshgrid": vectors,
    **dict.fromkeys("tril triu".split(), lambda d: ((matrices(d, "fib"),), {"k": d.one(0, 1, -1)})),
    "asarray": lambda d: ((d.one(d.array("fibc"), [[1, 2], [3, 4]], 2.5, True, 1j, [], [1.0, 2]),), {"copy": d.one(None, True)}),
    "from_dlpack": unary("fiub"),
    "astype": lambda d: ((d.array("fiub", special=False, low=0), Type(d.dtype("ifc"))), {"copy": d.one(True, False)}),
    "can_cast": dtype_pair, "result_type": promoting,
    "isdtype": lambda d: ((Type(d.dtype("iufcb")), d.one("bool", "signed integer", "unsigned integer", "integral",
                          "real floating", "complex floating", "numeric", Type("int8"), ("bool", Type("float32")))), {}),
    "finfo": lambda d: ((d.one(Type(d.dtype("fc")), d.array("fc")),), {}),
    "iinfo": lambda d: ((d.one(Type(d.dtype("iu")), d.array("iu")),), {}),
    "broadcast_shapes": lambda d: (d.one(((2, 3), (3,)), ((),), ((2, 1), (1, 3), (2, 3)), ((0, 1), (1, 3))), {}),
    "broadcast_arrays": lambda d: (d.one((d.array("f", (2, 1)), d.array("i", (3,))), (d.array("b", ()),)), {}),
    "broadcast_to": lambda d: ((d.array("fib", d.one((3,), (1, 3), (), (2, 1))), (2, 3)), {}),
    "concat": joined(1, none=True), "stack": joined(0), "unstack": along("fib"),
    "expand_dims": expanded, "squeeze": squeezed, "flip": flipped, "moveaxis": moved, "permute_dims": permuted,
    "reshape": reshaped, "roll": shifted, "repeat": repeated, "take": taken, "take_along_axis": taken_along,
    "tile": lambda d: ((d.array("fib"), d.one((2,), (1, 2), (2, 1, 3), (0,), ())), {}),
    "matmul": product, "tensordot": tensor_product, "vecdot": vector_products,
    "matrix_transpose": lambda d: ((matrices(d, "fib"),), {}),
    "linalg.matmul": product, "linalg.tensordot": tensor_product, "linalg.vecdot": vector_products,
    "linalg.matrix_transpose": lambda d: ((matrices(d, "fib"),), {}),
    "linalg.cholesky": lambda d: ((hermitian(d),), {"upper": d.one(False, True)}),
    "linalg.cross": vector_products,
    **dict.fromkeys("linalg.det linalg.inv linalg.slogdet".split(), lambda d: ((square_matrices(d),), {})),
    "linalg.diagonal": lambda d: ((matrices(d, "fi"),), {"offset": d.one(0, 1, -1)}),
    "linalg.trace": lambda d: ((matrices(d, "fiu"),), {"offset": d.one(0, 1, -1), "dtype": d.one(None, Type("float64"))}),
    **dict.fromkeys("linalg.eig linalg.eigvals".split(), lambda d: ((square_matrices(d),), {})),
    **dict.fromkeys("linalg.eigh linalg.eigvalsh".split(), lambda d: ((hermitian(d),), {})),
    "linalg.matrix_norm": lambda d: ((matrices(d),), {"keepdims": d.one(False, True),
                                                      "ord": d.one("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)}),
    "linalg.vector_norm": reduction("fc", ord=(2, 1, 0, 3.5)),
    "linalg.matrix_power": lambda d: ((square_matrices(d), d.one(0, 1, 3, -2)), {}),
    "linalg.matrix_rank": lambda d: ((matrices(d),), {"rtol": d.one(None, 0.5)}),
    "linalg.outer": lambda d: ((d.array("f", (3,)), d.array("f", (2,))), {}),
    "linalg.pinv": lambda d: ((matrices(d),), {"rtol": d.one(None, 1e-3)}),
    "linalg.qr": lambda d: ((matrices(d),), {"mode": d.one("reduced", "complete")}),
    "linalg.svd": lambda d: ((matrices(d),), {"full_matrices": d.one(True, False)}),
    "linalg.svdvals": lambda d: ((matrices(d),), {}),
    "linalg.solve": lambda d: d.one(*(((a, d.values(b, a.dtype, special=False)), {}) for a in [square_matrices(d)]
                                      for b in ((a.shape[-1],), (*a.shape[:-1], 2), (a.shape[-1], 2)))),
    **dict.fromkeys(("fft.fft", "fft.ifft", "fft.irfft", "fft.hfft"), transform("c")),
    **dict.fromkeys(("fft.rfft", "fft.ihfft"), transform("f")),
    **dict.fromkeys(("fft.fftn", "fft.ifftn", "fft.irfftn"), transform("c", many=True, rank=2)),
    "fft.rfftn": transform("f", many=True, rank=2),
    **dict.fromkeys(("fft.fftshift", "fft.ifftshift"), fourier_shift),
    **dict.fromkeys(("fft.fftfreq", "fft.rfftfreq"),
                    lambda d: ((d.one(4, 5, 1),), {"d": d.one(1.0, 0.25), "dtype": d.one(None, Type("float32"))})),
}  # fmt: skip

SPACES = {"": (strict, xp), "linalg.": (strict.linalg, xp.linalg), "fft.": (strict.fft, xp.fft)}
OWN = "set_array_api_strict_flags get_array_api_strict_flags reset_array_api_strict_flags".split()
"""What array-api-strict has for itself."""
LEFT_OUT = {"linalg.": ("eig", "eigvals")}
"""What array-api-strict has and does not list."""
NAMES = {
    prefix + n: getattr(space, n)
    for prefix, (space, _) in SPACES.items()
    for n in [*space.__all__, *LEFT_OUT.get(prefix, ())]
    if inspect.isfunction(getattr(space, n)) and n not in OWN and not n.startswith("__")
}
UNSET = "empty", "empty_like"  # what they hold is nobody's business


def both(name):
    prefix, _, plain = name.rpartition(".")
    return [getattr(space, plain) for space in SPACES[prefix and prefix + "."]]


def test_no_function_of_the_standard_is_missing_from_the_table():
    assert len(NAMES) > 170
    assert NAMES.keys() == {*CASES, *UNSET}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_signatures_are_the_standards(name):
    def parameters(function):
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, None if "UNDEF" in repr(p.default) else p.default) for p in found]

    wanted, got = map(parameters, both(name))
    assert got == wanted


# -- results ----------------------------------------------------------------------------------------------------------


def compared(got, wanted, name):
    """One result against the other: structure, names, dtypes, shapes, values."""
    if isinstance(wanted, (tuple, list)):
        assert isinstance(got, tuple) and len(got) == len(wanted)
        assert getattr(got, "_fields", None) == getattr(wanted, "_fields", None)
        for a, b in zip(got, wanted):
            compared(a, b, name)
    elif isinstance(wanted, strict._array_object.Array):
        assert isinstance(got, lz.Tensor)
        assert got.dtype.name == wanted.dtype._np_dtype.name
        assert tuple(got.shape) == wanted.shape
        same_values(got.numpy(), np.asarray(wanted._array), name)
    elif hasattr(wanted, "bits"):
        assert all(getattr(got, field) == getattr(wanted, field) for field in vars(wanted) if field != "dtype")
        assert got.dtype.name == wanted.dtype._np_dtype.name
    elif isinstance(wanted, strict._dtypes.DType):
        assert got.name == wanted._np_dtype.name
    else:
        assert got == wanted and type(got) is type(wanted)


EXACT = """add subtract multiply divide negative sign square sqrt floor ceil round trunc copysign maximum minimum clip positive
real imag conj where nextafter remainder floor_divide reshape roll take""".split()
"""Functions whose results are compared to the last bit."""
SIGNED = [
    *EXACT,
    *"""acos acosh asin asinh atan atanh cos cosh exp expm1 log log10 log1p log2 sin sinh tan tanh reciprocal atan2 hypot
logaddexp pow""".split(),
]
"""Functions of which the standard says what sign a zero has."""


def same_values(a, b, name):
    if a.dtype.kind == "f" and name in SIGNED:
        zero = (a == 0) & (b == 0)
        np.testing.assert_array_equal(np.signbit(a[zero]), np.signbit(b[zero]))
    if a.dtype.kind not in "fc" or (a.dtype.kind == "f" and name in EXACT):
        np.testing.assert_array_equal(a, b)
        return
    error = 1e-4 if a.dtype in (np.float32, np.complex64) else 1e-10
    np.testing.assert_allclose(a, b, rtol=error, atol=error)


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=max(EXAMPLES, 5))
@given(st.data())
@np.errstate(all="ignore")
@pytest.mark.filterwarnings("ignore")
def test_results_are_those_of_array_api_strict(name, data):
    args, options = CASES[name](Draw(data))
    expected, function = both(name)
    got, wanted = (
        function(*mapped(ours, args), **mapped(ours, options)),
        expected(*mapped(theirs, args), **mapped(theirs, options)),
    )
    compared(got, wanted, name)


OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "matmul": "matmul", "neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert",
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@given(st.data())
@np.errstate(all="ignore")
@pytest.mark.filterwarnings("ignore")
def test_operators_are_those_of_array_api_strict(name, data):
    """Of operands of one dtype: what a 0-d tensor beside others does to it is PyTorch's."""
    args, _ = CASES[OPERATORS[name]](Draw(data))
    arrays = [x for x in args if isinstance(x, np.ndarray)]
    args = [x.astype(arrays[0].dtype) if isinstance(x, np.ndarray) else x for x in args]
    compute = getattr(operator, name)
    compared(compute(*map(ours, args)), compute(*map(theirs, args)), OPERATORS[name])


# -- what is not compared -----------------------------------------------------------------------------------------------


def test_empty_tensors_have_the_shape_and_dtype_asked_for():
    x = xp.empty((2, 3), dtype=xp.int16)
    assert x.shape == (2, 3) and x.dtype is xp.int16
    assert xp.empty(4).dtype is xp.float64
    assert xp.empty_like(x).dtype is xp.int16 and xp.empty_like(x, dtype=xp.bool).dtype is xp.bool


def test_isin_can_be_inverted():  # array-api-strict 2.6.1 does not look at `invert`
    x = lz.tensor([1, 2, 3, 4])
    assert xp.isin(x, lz.tensor([2, 4]), invert=True).tolist() == [True, False, True, False]


def test_a_tensor_of_no_dimensions_counts_in_promotion():
    a, b = lz.tensor([1.0], dtype=lz.float32), lz.tensor(2.0, dtype=lz.float64)
    assert xp.add(a, b).dtype is xp.where(a > 0, a, b).dtype is lz.float64
    assert (a + b).dtype is lz.float32  # operators are PyTorch's


FLOAT_LIST = [0.5, -0.25, 0.75]
DIFFERENTIABLE = {
    "sum": lambda x: xp.sum(x * x, axis=()), "clip": lambda x: xp.clip(x, -0.1, 0.6), "take": lambda x: xp.take(x, lz.tensor([2, 0, 2])),
    "unique_values": lambda x: xp.unique_values(x) ** 2, "var": lambda x: xp.var(x, correction=1),
    "cumulative_sum": lambda x: xp.cumulative_sum(x * x, include_initial=True), "matmul": lambda x: xp.matmul(x, x),
    "concat": lambda x: xp.concat([x, x * x]), "where": lambda x: xp.where(x > 0, x * x, 1), "roll": lambda x: xp.roll(x, 1) * x,
    "vector_norm": xp.linalg.vector_norm, "fft": lambda x: xp.abs(xp.fft.rfft(x)), "repeat": lambda x: xp.repeat(x * x, 2),
    "eig": lambda x: xp.abs(xp.linalg.eigvals(x * lz.eye(3, dtype=x.dtype) + 0.1)), "sign": lambda x: xp.sign(x) * x * x,
    "outer": lambda x: xp.linalg.outer(x, x), "complex": lambda x: xp.abs(xp.sin(xp.astype(x, xp.complex128) * (1 + 1j))),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DIFFERENTIABLE))
def test_gradients_are_kept(name):
    f = DIFFERENTIABLE[name]
    assert lz.autograd.gradcheck(f, lz.tensor(FLOAT_LIST, dtype=lz.float64, requires_grad=True))


def test_the_revision_asked_for_is_one_there_is():
    x = lz.ones(2)
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2022.12") is xp
    assert xp.__array_api_version__ == strict.__array_api_version__ == "2025.12"
    with pytest.raises(ValueError, match="2030"):
        x.__array_namespace__(api_version="2030.12")


def test_information_about_the_namespace():
    info, other = xp.__array_namespace_info__(), strict.__array_namespace_info__()
    assert info.capabilities() == other.capabilities()
    assert info.devices() == (info.default_device(),) == (lz.ones(2).device,)
    for kind in (
        None,
        "bool",
        "integral",
        "real floating",
        ("bool", "complex floating"),
        "numeric",
        "unsigned integer",
    ):
        assert info.dtypes(kind=kind).keys() == other.dtypes(kind=kind).keys()
        assert all(getattr(xp, n) is d for n, d in info.dtypes(kind=kind).items())
    names = {k: d.name for k, d in info.default_dtypes().items()}
    assert names == {k: d._np_dtype.name for k, d in other.default_dtypes().items()}
    lz.set_default_dtype(lz.float32)
    try:
        assert info.default_dtypes()["real floating"] is lz.float32 is xp.ones(2).dtype
    finally:
        lz.set_default_dtype(lz.float64)
    wide = lz.ones(*(1,) * info.capabilities()["max dimensions"])
    assert (wide + 1).sum().item() == 2


def test_constants():
    for name in ("e", "pi", "inf", "newaxis"):
        assert getattr(xp, name) == getattr(strict, name)
    assert np.isnan(xp.nan)


def test_an_array_has_everything_the_standard_names():
    x = lz.ones(2, 3)
    names = [n for n in dir(strict._array_object.Array) if not n.startswith("_")]
    special = [n for n in dir(strict._array_object.Array) if n.startswith("__")]
    assert "to_device" in names and "__imatmul__" in special
    assert all(hasattr(x, n) for n in [*names, *special])
    assert x.size == 6 and x.size() == (2, 3) and x.size(1) == 3 and np.size(x) == 6
    assert x.to_device("cpu") is x and x.to_device(x.device, stream=None) is x
    with pytest.raises(ValueError, match="no streams"):
        x.to_device("cpu", stream=1)


def test_operators_that_pytorch_does_not_have():
    x = lz.tensor([1, 2, 3])
    assert (+x).tolist() == [1, 2, 3]
    assert (1 << x).tolist() == [2, 4, 8] and (64 >> x).tolist() == [32, 16, 8]
    for write, wanted in ((lambda t: t.__ilshift__(1), [2, 4, 6]), (lambda t: t.__irshift__(1), [0, 1, 1])):
        y = lz.tensor([1, 2, 3])
        assert write(y) is y and y.tolist() == wanted
    m = same = lz.tensor([[1.0, 2.0], [3.0, 4.0]])
    m @= lz.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert m is same and m.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    with pytest.raises(TypeError):
        x << "1"


ERRORS = {
    "of what is no tensor": (TypeError, "a tensor is needed, got a list", lambda x: xp.sum([1.0])),
    "of no tensor": (TypeError, "one of the operands must be a tensor", lambda x: xp.add(1, 2)),
    "operand": (TypeError, "got a str", lambda x: xp.add(x, "1")),
    "positional": (TypeError, "positional", lambda x: xp.sum(x, 0)),
    "by name": (TypeError, "positional", lambda x: xp.exp(x=x)),
    "squeeze": (ValueError, "extent 2, not 1", lambda x: xp.squeeze(x, axis=0)),
    "expand_dims": (IndexError, "out of range", lambda x: xp.expand_dims(x, axis=5)),
    "device": (ValueError, "no device 'cuda'", lambda x: xp.ones(2, device="cuda")),
    "kind": (ValueError, "a kind is one of 'bool'", lambda x: xp.isdtype(x.dtype, "float")),
    "complex to real": (TypeError, r"take real\(x\)", lambda x: xp.astype(x * 1j, xp.float32)),
    "nonzero": (ValueError, "0-d", lambda x: xp.nonzero(x[0, 0])),
    "cumulative_sum": (ValueError, "axis is needed", xp.cumulative_sum),
    "take": (ValueError, "axis is needed", lambda x: xp.take(x, lz.tensor([0]))),
    "side": (ValueError, "'left' or 'right'", lambda x: xp.searchsorted(x[0], x[0], side="middle")),
    "roll": (ValueError, "2 shifts for 1", lambda x: xp.roll(x, (1, 2), axis=0)),
    "clip": (ValueError, "does not fit", lambda x: xp.clip(x[0], x)),
    "moveaxis": (ValueError, "1 dimensions cannot move to 2", lambda x: xp.moveaxis(x, 0, (0, 1))),
    "asarray of another dtype": (ValueError, "without a copy", lambda x: xp.asarray(x, dtype=xp.int8, copy=False)),
    "asarray of a list": (ValueError, "no memory to share", lambda x: xp.asarray([1], copy=False)),
    "asarray of a transposed array": (ValueError, "row-major", lambda x: xp.asarray(np.ones((2, 3)).T, copy=False)),
    "vecdot": (ValueError, "extents 3 and 2", lambda x: xp.vecdot(x, x[:, :2])),
    "vecdot axis": (IndexError, "no dimension -3", lambda x: xp.vecdot(x, x, axis=-3)),
    "cross": (ValueError, "extent 3", lambda x: xp.linalg.cross(x, x, axis=0)),
    "transpose": (ValueError, "two dimensions", lambda x: xp.matrix_transpose(x[0])),
    "qr": (ValueError, "'reduced' or 'complete'", lambda x: xp.linalg.qr(x, mode="r")),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_is_wrong(name):
    error, says, call = ERRORS[name]
    with pytest.raises(error, match=says):
        call(lz.ones(2, 3))


def test_asarray_shares_memory_where_it_can():
    array = np.arange(6.0).reshape(2, 3)
    x = xp.asarray(array, copy=False)
    assert np.shares_memory(x.numpy(), array) and xp.asarray(x) is x
    assert not np.shares_memory(xp.asarray(array).numpy(), array)
    assert not np.shares_memory(xp.asarray(x, copy=True).numpy(), array)
    assert xp.asarray(strict.asarray(array), copy=False).shape == (2, 3)
    assert xp.asarray(strict.asarray(array), dtype=xp.int8).dtype is xp.int8
    assert xp.asarray(memoryview(array), copy=False).tolist() == array.tolist()


def test_shapes_that_depend_on_values_are_refused_in_captured_functions():
    for f in (xp.unique_values, xp.nonzero):
        with pytest.raises(Exception, match="decides the shape"):
            lz.jit(f)(lz.ones(3))
