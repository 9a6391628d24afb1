"""What takes one load of a value in memory is made again where it is used."""

import numpy as np
import pytest

import lezero as lz
from lezero.hal import registry
from lezero.runtime import run

native = pytest.mark.skipif(registry.get_backend() != "cpu", reason="about the backend that generates code")


@native
def test_steps_that_start_from_one_value_more_than_once_are_seen_through():
    lz.realize()  # whatever else has been recorded is no part of the plan
    r = np.random.default_rng(0)
    x, v, w, g = (lz.tensor(r.normal(size=(64, 64)).astype(np.float32)) for _ in range(4))
    s = (x @ w).sigmoid()
    both = s @ v, (s * (1 - s) * (g @ v)) @ w  # the derivative of a gate, long after the gate
    lz.realize(*both)
    plan, _ = run.statistics.last
    steps = [s for together in plan.program.schedule.steps for s in together]
    assert [[n.op.name for n in step.writes] for step in steps] == [["sigmoid"], ["dot"], ["mul"], ["dot"]]
    a, b, c, d = (t.numpy().astype(np.float64) for t in (x, v, w, g))
    gate = 1 / (1 + np.exp(-(a @ c)))
    np.testing.assert_allclose(both[1].numpy(), (gate * (1 - gate) * (d @ b)) @ c, rtol=1e-4, atol=1e-3)
