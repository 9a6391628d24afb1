"""Power means over windows, and values put back where maxima were, against PyTorch's: results and gradients."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F
from test_nn_layers import normal, same, twin

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("n", "shape"), [(1, (2, 3, 8)), (1, (3, 7)), (2, (2, 3, 6, 7)), (2, (3, 6, 5))])
@pytest.mark.parametrize(("p", "options"), [(2, {}), (3, {"stride": 2}), (1.5, {"ceil_mode": True, "stride": 3})])
def test_power_means(n, shape, p, options):
    same(*twin(f"LPPool{n}d", p, 2, **options), abs(normal(*shape)) + 0.1, tolerance=1e-10)


def test_the_largest_is_a_power_mean():
    for p in (float("inf"), -float("inf")):
        same(*twin("LPPool1d", p, 3, 2), normal(2, 3, 9))


@pytest.mark.parametrize(
    ("n", "shape", "args", "size"),
    [
        (1, (2, 3, 8), (2,), None),
        (1, (3, 9), (3, 2), None),
        (2, (2, 3, 6, 8), (2, 2), None),
        (2, (2, 3, 7, 9), (2, 2), (7, 9)),
        (2, (2, 3, 7, 9), (3, 3, 1), (2, 3, 7, 9)),
        (3, (2, 3, 4, 4, 6), (2,), None),
    ],
)
def test_values_go_back_where_maxima_were(n, shape, args, size):
    pooled, at = getattr(torch.nn.functional, f"max_pool{n}d")(torch.tensor(normal(*shape)), *args, return_indices=True)
    ours, theirs = twin(f"MaxUnpool{n}d", *args)
    same(
        lambda x: ours(x, lz.tensor(at.numpy()), size),
        lambda x: theirs(x, at, None if size is None else list(size)),
        pooled.numpy(),
    )


def test_pooled_and_put_back():
    x = lz.tensor(normal(2, 3, 6, 6))
    y = nn.MaxUnpool2d(2)(*F.max_pool2d(x, 2, return_indices=True)).numpy()
    np.testing.assert_array_equal(y[y != 0], x.numpy()[y != 0])
    assert (y != 0).sum() == 2 * 3 * 9
    for call, says in [
        (lambda: F.max_unpool2d(x, lz.zeros(2, 3, 6, 5, dtype="int64"), 2), "indices of its shape"),
        (lambda: F.max_unpool2d(x, lz.zeros(2, 3, 6, 6, dtype="int64"), 2, output_size=(12, 14)), "less than a stride"),
    ]:
        with pytest.raises(ValueError, match=says):
            call()
