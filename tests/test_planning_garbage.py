"""Planning leaves nothing behind that only Python's search for cycles would find."""

import gc

import lezero as lz


def _loss(x, w, shape):
    h = (x @ w).relu().reshape(shape)
    return (h.softmax(-1) * h).sum((0, 1)).sum()


def test_what_lowers_a_kernel_is_in_no_cycle():
    w = lz.randn(16, 16, requires_grad=True)
    _loss(lz.randn(4, 16), w, (4, 2, 8)).backward()
    lz.realize(w.grad)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        plans = lz.runtime.stats()["plans_built"]
        w.grad = None
        _loss(lz.randn(4, 16), w, (4, 4, 4)).backward()
        lz.realize(w.grad)
        assert lz.runtime.stats()["plans_built"] == plans + 1
        gc.collect()
        kinds = {type(o).__qualname__ for o in gc.garbage if type(o).__module__.startswith("lezero.schedule.")}
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert not kinds
