"""einops' functions and layers with tensors, against einops with NumPy's arrays."""

import subprocess
import sys

import numpy as np
import pytest

import lezero as lz

einops = pytest.importorskip("einops")

rng = np.random.default_rng(0)
X = rng.normal(size=(2, 3, 4, 6))


def both(function, *args, **options):
    """The same call with a tensor and with an array."""
    got, wanted = function(lz.tensor(X), *args, **options), function(X, *args, **options)
    assert type(got) is lz.Tensor
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)
    return got


@pytest.mark.parametrize(
    "pattern, sizes",
    [("b c h w -> b (h w) c", {}), ("b c (h p) (w q) -> (b h w) c p q", {"p": 2, "q": 3}), ("b c ... -> ... b c", {}),
     ("b c h w -> b c h w 1", {}), ("b c h w -> (b c h w)", {})],
)  # fmt: skip
def test_rearrange(pattern, sizes):
    both(einops.rearrange, pattern, **sizes)


@pytest.mark.parametrize("reduction", "min max sum mean prod".split())
def test_reduce(reduction):
    both(einops.reduce, "b c (h p) w -> b h w", reduction, p=2)
    both(einops.reduce, "b c h w ->", reduction)


@pytest.mark.parametrize("reduction", ["any", "all"])
def test_reduce_of_bools(reduction):
    x = X > 0.5
    got = einops.reduce(lz.tensor(x), "b c h w -> b w", reduction)
    np.testing.assert_array_equal(got.numpy(), einops.reduce(x, "b c h w -> b w", reduction))


def test_repeat_einsum_pack_and_the_rest():
    both(einops.repeat, "b c h w -> (b r) c h w k", r=2, k=3)
    assert einops.parse_shape(lz.tensor(X), "b _ h w") == {"b": 2, "h": 4, "w": 6}
    assert einops.asnumpy(lz.tensor(X)).shape == X.shape
    w = rng.normal(size=(3, 5))
    got = einops.einsum(lz.tensor(X), lz.tensor(w), "b c h w, c d -> b h w d")
    np.testing.assert_allclose(got.numpy(), einops.einsum(X, w, "b c h w, c d -> b h w d"), rtol=1e-10)
    packed, shapes = einops.pack([lz.tensor(X), lz.tensor(X[0, 0])], "* h w")
    assert tuple(packed.shape) == (7, 4, 6)
    a, b = einops.unpack(packed, shapes, "* h w")
    np.testing.assert_array_equal(a.numpy(), X)
    np.testing.assert_array_equal(b.numpy(), X[0, 0])
    rows = einops.rearrange([lz.tensor(X[0]), lz.tensor(X[1])], "b c h w -> b c (h w)")
    np.testing.assert_array_equal(rows.numpy(), X.reshape(2, 3, 24))


def test_gradients_go_through_and_extents_may_change():
    step = lz.jit(lambda x: einops.reduce(x, "b c h w -> b c", "mean"))
    for n in (2, 3, 2, 5):  # einops remembers shapes, recordings have symbols for them
        x = lz.tensor(rng.normal(size=(n, 3, 4, 6)), requires_grad=True)
        y = einops.rearrange(x, "b c h w -> b (c h w)")
        (y * y).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy())
        np.testing.assert_allclose(step(x.detach()).numpy(), x.numpy().mean((2, 3)))


def test_layers_are_modules():
    from lezero.einops.layers import EinMix, Rearrange, Reduce

    net = lz.nn.Sequential(
        Rearrange("b c (h p) w -> b (h w) (c p)", p=2),
        EinMix("b t c -> b t d", "c d", "d", c=6, d=4),
        Reduce("b t d -> b d", "mean"),
    )
    assert [n for n, _ in net.named_parameters()] == ["1.weight", "1.bias"]
    x = lz.tensor(X.astype("f4"))
    out = net(x)
    w, bias = (p.detach().numpy() for p in net.parameters())
    tokens = einops.rearrange(X, "b c (h p) w -> b (h w) (c p)", p=2)
    np.testing.assert_allclose(out.detach().numpy(), (tokens @ w + bias.reshape(-1)).mean(1), rtol=1e-4, atol=1e-5)
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(
    "order", ["import lezero, einops", "import einops, lezero", "import lezero\nfrom einops.layers import *"]
)
def test_either_may_be_imported_first(order):
    program = f"{order}\nimport lezero as lz, einops\nprint(tuple(einops.rearrange(lz.ones(2, 3), 'a b -> b a').shape))"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stdout == "(3, 2)\n", done.stderr


def test_einops_is_not_imported_for_tensors_alone():
    program = "import sys, lezero as lz; lz.ones(2).numpy(); print('einops' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True).stdout == "False\n"
    )


@pytest.mark.parametrize("module", ["lezero.einops", "lezero.einops.layers"])
def test_without_einops_it_is_said_what_to_install(module):
    program = f"import sys; sys.modules['einops'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: lezero.einops needs einops: pip install einops"
