"""``lz.device``: backends, memory, threads and settings."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero.backends.cpu.detect import detect


def test_backends_are_listed_and_chosen():
    assert lz.device.list_backends()[:2] == ["cpu", "numpy"]
    before = lz.device.get_backend()
    x = lz.ones(3) * 2
    try:
        lz.device.set_backend("numpy")
        assert lz.device.get_backend() == "numpy" and lz.device.devices() == ["cpu"]
        assert (x + 1).tolist() == [3, 3, 3]
        lz.device.set_backend("cpu")
        assert (x + 1).tolist() == [3, 3, 3]
    finally:
        lz.device.set_backend(before)
    with pytest.raises(ValueError, match="there is no backend 'abacus'; installed: cpu, numpy"):
        lz.device.set_backend("abacus")


def test_properties_of_the_cpu():
    properties = lz.device.properties()
    assert properties.kind == "cpu" and properties.cores >= 1
    with pytest.raises(ValueError, match="has no device 'cuda:0'; it has cpu"):
        lz.device.properties("cuda:0")


@pytest.mark.skipif(lz.device.get_backend() != "cpu", reason="counts the cpu backend's memory")
def test_memory_is_counted():
    lz.device.synchronize()
    lz.device.reset_peak_memory_stats()
    before = lz.device.memory_stats()
    x = (lz.ones(1000, 1000) * 2).realize()
    during = lz.device.memory_stats()
    assert during["allocated_bytes"] - before["allocated_bytes"] >= 4_000_000
    del x
    after = lz.device.memory_stats()
    assert after["allocated_bytes"] < during["allocated_bytes"]
    assert after["peak_bytes"] >= during["allocated_bytes"]
    lz.device.reset_peak_memory_stats()
    assert lz.device.memory_stats()["peak_bytes"] < during["peak_bytes"]
    assert {"arena_bytes", "kernels_loaded", "kernels_compiled"} <= set(after)


def test_results_do_not_depend_on_being_asked_with_other_threads():
    before = lz.get_num_threads()
    x = lz.tensor(np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32))
    try:
        for threads in (1, 2, 3):
            lz.set_num_threads(threads)
            assert lz.get_num_threads() == threads
            np.testing.assert_allclose((x * 2).sum(0).numpy(), x.numpy().sum(0) * 2, rtol=1e-4, atol=1e-4)
    finally:
        lz.set_num_threads(before)
    with pytest.raises(ValueError, match="from 1 to 1024, not 0"):
        lz.set_num_threads(0)
    with pytest.raises(TypeError, match="an int"):
        lz.set_num_threads("all")


@pytest.fixture
def precision():
    """The function that sets it; what was set before is put back."""
    before = lz.get_float32_matmul_precision()
    yield lz.set_float32_matmul_precision
    lz.set_float32_matmul_precision(before)


@pytest.mark.skipif(lz.device.get_backend() != "cpu", reason="the CPU backend follows it")
@pytest.mark.parametrize("captured", [False, True])
def test_medium_precision_rounds_the_operands_of_matrix_products(precision, captured):
    rng = np.random.default_rng(0)
    a, b = (lz.tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((60, 75), (75, 40)))
    product = lz.jit(lambda x, y: x @ y) if captured else lambda x, y: x @ y
    exact = a.numpy().astype(np.float64) @ b.numpy()
    bound = np.abs(a.numpy()) @ np.abs(b.numpy())
    rounded = a.to(lz.bfloat16).float().numpy().astype(np.float64) @ b.to(lz.bfloat16).float().numpy()
    results = {}
    for name in ("highest", "medium", "high", "medium"):
        precision(name)
        assert lz.get_float32_matmul_precision() == name
        for _ in range(3):  # captured functions are ready from the third call on
            results[name] = product(a, b).numpy()
    np.testing.assert_array_less(np.abs(results["highest"] - exact), 2e-6 * bound)
    np.testing.assert_array_less(np.abs(results["high"] - exact), (2.0**-14 if detect().amx else 2e-6) * bound)
    expected = rounded if detect().bf16_dot else exact
    np.testing.assert_array_less(np.abs(results["medium"] - expected), 2e-6 * bound)
    np.testing.assert_array_less(np.abs(results["medium"] - exact), 2.0**-7 * bound)


def test_precision_is_a_setting():
    assert lz.device.get_float32_matmul_precision() == "highest"
    with pytest.raises(ValueError, match="highest, high, medium"):
        lz.set_float32_matmul_precision("low")
