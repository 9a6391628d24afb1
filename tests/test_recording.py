"""Recording: a repeated step follows its trace, another one branches off, and what is remembered is bounded."""

import gc
import threading
import weakref

import numpy as np
import pytest

import lezero as lz
from lezero import nn, optim
from lezero.graph.node import Node
from lezero.nn import functional as F
from lezero.runtime import inference, recorder, run, stats, template, trie
from lezero.runtime.recording import STATE
from lezero.runtime.template import Template


class Made:
    """How many nodes have been made since ``reset``, which is what a repeated step does not do."""

    def reset(self):
        self.before = stats()["trie_nodes"]

    def nodes(self):
        return stats()["trie_nodes"] - self.before


@pytest.fixture
def made():
    counter = Made()
    counter.reset()
    return counter


def mlp():
    net = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 4))
    return net, optim.AdamW(net.parameters(), lr=0.01)


def train(net, opt, n, seed=0):
    r = np.random.default_rng(seed)
    x, y = lz.tensor(r.normal(size=(n, 7)).astype(np.float32)), lz.tensor(r.integers(0, 4, n))
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    return loss


def test_a_repeated_step_makes_no_node(made):
    net, opt = mlp()
    for _ in range(3):
        train(net, opt, 8)
    made.reset()
    for i in range(5):
        train(net, opt, 8 + i, seed=i)
    assert made.nodes() == 0


def test_a_step_that_reads_its_loss_makes_no_node_either(made):
    net, opt = mlp()

    def step(n):
        x, y = lz.tensor(np.ones((n, 7), np.float32)), lz.tensor(np.zeros(n, np.int64))
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.item()
        loss.backward()
        opt.step()

    for _ in range(3):
        step(8)
    made.reset()
    step(8), step(5)
    assert made.nodes() == 0


@pytest.fixture
def traced(monkeypatch):
    """The rules traced, in order."""
    rules = []
    first = Template.__init__

    def init(self, rule, specs, bindings):
        rules.append(rule)
        first(self, rule, specs, bindings)

    monkeypatch.setattr(Template, "__init__", init)
    return rules


def forget_the_trie():
    trie.size = trie.MAX_TRIE_NODES + 1
    lz.realize(lz.zeros(1))


def test_equal_layers_trace_their_rules_once(traced):
    def deep(layers):
        net = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(13, 13), nn.Tanh())])
        opt = optim.AdamW(net.parameters())
        before = len(traced)
        net(lz.tensor(np.ones((5, 13), np.float32))).sum().backward()
        opt.step()
        return len(traced) - before

    assert deep(3) > 0
    assert deep(9) == 0


def test_a_new_trace_infers_and_traces_nothing_that_is_known(traced, monkeypatch):
    net, opt = mlp()
    train(net, opt, 8)
    forget_the_trie()
    traced.clear()
    inferred = []
    keep = inference._keep
    monkeypatch.setattr(inference, "_keep", lambda key, found: inferred.append(found.op) or keep(key, found))
    before = stats()["trie_nodes"]
    train(net, opt, 8)
    assert stats()["trie_nodes"] - before > 30
    assert traced == [] and inferred == []


def test_gradients_nobody_wants_are_not_recorded(made):
    def recorded(wanted):
        x, w = lz.tensor(np.ones((4, 3), np.float32)), lz.ones(3, 2).requires_grad_()
        lz.realize(x, w)
        y = (x.requires_grad_(wanted) @ w).sum()
        before = stats()["trie_nodes"]
        y.backward()
        after = stats()["trie_nodes"]
        lz.realize()
        return after - before

    assert recorded(False) < recorded(True)


def test_records_of_inference_made_anew_follow_the_same_trace(made):
    net, _ = mlp()
    opt = optim.SGD(net.parameters(), lr=0.01)  # records its step each time
    x, y = lz.tensor(np.ones((8, 7), np.float32)), lz.tensor(np.zeros(8, np.int64))

    def step():
        opt.zero_grad()
        h = net[1](net[0](x))
        h.register_hook(lambda g: None)  # so that backward is recorded and not followed as a whole
        F.cross_entropy(net[2](h), y).backward()
        opt.step()

    for _ in range(3):
        step()
    made.reset()
    for _ in range(3):
        inference._inferred.clear()
        step()
    assert made.nodes() == 0


def test_templates_are_bounded(monkeypatch):
    monkeypatch.setattr(template, "MAX_TEMPLATES", 2)
    x = lz.ones(3).requires_grad_()
    for k in range(2, 8):
        (x.exp() * lz.ones(k, 3)).sum().backward()
        x.exp().expand(k, 3).mean(0).sum().backward()
        lz.realize()
    tables = [f.templates for f in inference._inferred.values() if f.templates]
    assert tables and all(len(t) <= 2 for t in tables if t)


def test_another_path_branches_off_and_is_remembered(made):
    x = lz.tensor(np.arange(6.0))

    def f(path):
        y = x * 2
        y = y.exp() if path == 0 else y.sin() if path == 1 else y + path
        return (y - 1).numpy()

    values = [f(p).copy() for p in range(4)]
    made.reset()
    for p in (3, 1, 0, 2, 1, 3):
        np.testing.assert_array_equal(f(p), values[p])
    assert made.nodes() == 0


def test_attributes_dtypes_and_modes_are_told_apart():
    x = lz.tensor(np.arange(6.0).reshape(2, 3))
    for _ in range(2):
        np.testing.assert_array_equal(x.sum(0).numpy(), [3, 5, 7])
        np.testing.assert_array_equal(x.sum(1).numpy(), [3, 12])
        np.testing.assert_array_equal((x.sum(0) + 1).numpy(), [4, 6, 8])
        np.testing.assert_array_equal((x.sum(0) + True).numpy(), [4, 6, 8])
        assert (x.int() + 1).dtype is lz.int32
        assert (x.int() + 1.0).dtype is lz.float32
        with lz.no_grad():
            assert not (lz.tensor([1.0], requires_grad=True) * 2).requires_grad
        assert (lz.tensor([1.0], requires_grad=True) * 2).requires_grad


def test_equal_extents_do_not_stay_equal_by_chance():
    """Extents that are the same number at first and differ later, in every combination."""
    r = np.random.default_rng(0)
    for n, m, k in [(5, 5, 5), (5, 6, 5), (6, 5, 5), (5, 5, 6), (2, 3, 4), (1, 1, 1), (1, 4, 1), (4, 1, 1), (3, 3, 1)]:
        a, b, c = r.normal(size=(n, 5)), r.normal(size=(m, 5)), r.normal(size=(k, 5))
        got = lz.cat([lz.tensor(a), lz.tensor(b)]) @ lz.tensor(c).T
        np.testing.assert_allclose(got.numpy(), np.concatenate([a, b]) @ c.T)
        if n == m or 1 in (n, m):
            np.testing.assert_allclose((lz.tensor(a) * lz.tensor(b)).numpy(), a * b)
        else:
            with pytest.raises(ValueError, match="broadcast"):
                lz.tensor(a) * lz.tensor(b)


def test_extents_read_before_a_run_are_numbers_after_it():
    """Their symbols belong to the recording that ended; in the next they are those of other tensors."""
    x = lz.tensor(np.arange(48).reshape(6, 8))
    rows, columns = (x + 1).shape
    assert (x + 1).sum().item() == 48 * 49 // 2
    others = lz.tensor(np.arange(12).reshape(3, 4)) * 2, lz.tensor(np.arange(48).reshape(8, 6)) * 2
    wide = (x + 1).reshape(rows, 1, columns).expand(rows, 2, columns)
    assert tuple(wide.shape) == (6, 2, 8) and wide.sum().item() == 2 * 48 * 49 // 2
    assert others[0].sum().item() == 132


@pytest.mark.parametrize("later", [0, 1, 2], ids="{} extents later".format)
def test_an_extent_read_before_a_run_is_a_number_among_operands_after_it(later):
    n = (lz.tensor(np.arange(48).reshape(6, 8)) + 1).shape[0]
    lz.tensor([1.0]).add_(1).numpy()
    others = [lz.tensor(np.arange(k)) * 2 for k in (7, 9)[:later]]
    x = lz.ones(2).realize()
    x[1] += n
    assert x.tolist() == [1, 7] and (lz.ones(2) * n).tolist() == [6, 6]
    assert [int(y.shape[0]) for y in others] == [7, 9][:later]


def test_a_decision_taken_on_an_extent_is_taken_again():
    def f(n):
        x = lz.tensor(np.arange(n, dtype=np.float64))
        return (x[:4] if x.shape[0] > 4 else x * 10).sum().item()

    for n in (8, 3, 9, 4, 5, 2, 100, 1):
        assert f(n) == (6.0 if n > 4 else 10.0 * n * (n - 1) / 2)


def test_plans_built_for_one_batch_size_serve_all_others():
    """Including sizes that coincide with fixed extents of the network, which must not be taken for them."""
    net, _ = mlp()
    for p in net.parameters():
        with lz.no_grad():
            p.copy_(lz.tensor(np.random.default_rng(1).normal(size=tuple(p.shape)).astype(np.float32)))
    start = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    w1, b1, w2, b2 = start.values()
    for n in (9, 7, 4, 9, 16, 2, 3, 64, 1, 7):
        x = np.random.default_rng(n).normal(size=(n, 7)).astype(np.float32)
        net.zero_grad()
        out = net(lz.tensor(x))
        out.sum().backward()
        h = x @ w1.T + b1
        np.testing.assert_allclose(out.numpy(), np.maximum(h, 0) @ w2.T + b2, rtol=2e-5, atol=2e-5)
        d = (np.ones((n, 4), np.float32) @ w2) * (h > 0)
        np.testing.assert_allclose(net[0].weight.grad.numpy(), d.T @ x, rtol=2e-5, atol=2e-4)


def test_what_nobody_holds_is_not_computed():
    x = lz.tensor(np.arange(4.0))
    seen = []
    build = run._build

    def watching(rec, ending, donated, backend):
        plan = build(rec, ending, donated, backend)
        seen.append([n.op.name for n in plan.graph.nodes()])
        return plan

    run._build, before = watching, run._build
    try:
        x.exp().sin()  # dropped at once
        (x.tan() + 0.125).numpy()
    finally:
        run._build = before
    assert seen and not any("exp" in names or "sin" in names for names in seen)


def test_a_run_computes_everything_that_is_held_once():
    x = lz.tensor(np.arange(4.0))
    a = x * 3
    b = a + 1
    c = a * a
    before = stats()["runs"]
    c.numpy()
    np.testing.assert_array_equal(b.numpy(), [1, 4, 7, 10])
    np.testing.assert_array_equal(a.numpy(), [0, 3, 6, 9])
    assert stats()["runs"] == before + 1


def test_realize_runs_all_that_is_held():
    a, b = lz.tensor([1.0]) + 1, lz.tensor([2.0]) + 1
    before = stats()["runs"]
    lz.realize(a)
    assert b.item() == 3.0
    assert stats()["runs"] == before + 1
    lz.realize(a, b)
    lz.realize()
    assert stats()["runs"] == before + 1


def test_plans_are_bounded_and_evicted_ones_come_back(monkeypatch):
    monkeypatch.setattr(run, "MAX_PLANS", 4)
    x = lz.tensor(np.ones(3))

    def chain(k):
        y = x
        for i in range(5):
            y = y.abs() if k >> i & 1 else y + 1
        return y.numpy().copy()

    expected = [chain(k) for k in range(12)]
    before = stats()["plan_evictions"]
    for k in range(12):
        np.testing.assert_array_equal(chain(k), expected[k])
    assert stats()["plans"] <= 4 and stats()["plan_evictions"] > before


def test_branches_of_one_node_are_bounded(monkeypatch):
    monkeypatch.setattr(trie, "MAX_BRANCHES", 8)
    x = lz.tensor(np.arange(64.0))
    for _ in range(2):
        for n in range(1, 20):
            assert x[:n].sum().item() == n * (n - 1) / 2


def test_a_full_trie_is_started_anew(monkeypatch):
    net, opt = mlp()
    train(net, opt, 8)
    monkeypatch.setattr(trie, "MAX_TRIE_NODES", 0)
    before = stats()["trie_resets"]
    a = train(net, opt, 8).item()
    b = train(net, opt, 8).item()
    assert b < a
    assert stats()["trie_resets"] > before


def test_nothing_keeps_a_dropped_model_alive():
    net, opt = mlp()
    for _ in range(3):
        train(net, opt, 8)
    gone = [weakref.ref(p) for p in net.parameters()] + [weakref.ref(p._buffer) for p in net.parameters()]
    del net, opt
    gc.collect()
    assert not any(r() is not None for r in gone)


def test_values_and_gradients_do_not_keep_their_past_alive():
    w = nn.Parameter(lz.tensor(np.ones((3, 3))))
    x = lz.tensor(np.ones((4, 3)))
    h = x @ w
    loss = (h * h).mean()
    loss.item()
    buffer = weakref.ref(h._buffer)
    loss.backward()
    w.grad.numpy()
    del h
    gc.collect()
    assert buffer() is None, "an intermediate value outlives the backward pass that freed it"
    assert loss.item() == 9.0


def test_symbols_of_a_long_lived_recording_are_bounded():
    for n in range(2, 700):
        t = lz.tensor(np.ones(n))
        assert t.shape == (n,)
    assert len(STATE.recording.bindings) <= 300
    assert lz.tensor(np.ones(5)).sum().item() == 5


def test_recording_inside_no_grad_and_enable_grad():
    w = nn.Parameter(lz.tensor([2.0]))
    with lz.no_grad():
        a = w * 2
        with lz.enable_grad():
            b = w * 3
        c = w * 4
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (False, True, False)
    b.backward()
    assert w.grad.item() == 3.0

    @lz.no_grad()
    def f(depth):
        assert not lz.is_grad_enabled()
        if depth:
            f(depth - 1)
        return w * 2

    assert not f(3).requires_grad and lz.is_grad_enabled()


def test_operands_that_are_no_tensors():
    x = lz.tensor([1.0, 2.0])
    assert (x + np.float64(1)).tolist() == [2.0, 3.0]
    assert (x * np.int32(3)).tolist() == [3.0, 6.0]
    with pytest.raises(TypeError, match=r"lz\.tensor"):
        lz.maximum(x, np.ones(2))
    with pytest.raises(TypeError):
        x + "a"
    y = x * 3
    with pytest.raises(OverflowError, match="int64"):
        (x + 2**70).numpy()
    assert (y + 1).tolist() == [4.0, 7.0]  # the recording goes on as if nothing had been


def test_results_that_are_collected_and_never_read_do_not_hold_their_data(monkeypatch):
    """The byte budget: a recording runs when the data it holds passes it, whether or not anybody reads a value."""
    monkeypatch.setattr(recorder, "MAX_RECORDED_BYTES", 64 * 1000)
    lz.realize(lz.zeros(1))
    runs = lz.runtime.stats()["runs"]
    sums = []
    for k in range(40):
        x = lz.tensor(np.full((1000,), float(k), np.float64))
        sums.append((x * 2).sum())
        del x
    assert lz.runtime.stats()["runs"] - runs >= 4
    assert STATE.recording.bytes <= 64 * 1000 + 8000
    assert [s.item() for s in sums] == [2000.0 * k for k in range(40)]


def test_another_default_dtype_is_followed_by_what_was_recorded_before():
    def dtypes():
        x, w = lz.arange(1, 6), lz.ones(5, dtype=lz.float32, requires_grad=True)
        half = x / 2
        y = (half * w).mean() + (x * 0.3 * w).sum()
        y.backward()
        return half.dtype, y.dtype, w.grad.dtype

    captured = lz.jit(lambda x: x / 2)
    try:
        for _ in range(2):
            for default in (lz.float32, lz.float64):
                lz.set_default_dtype(default)
                for _ in range(3):
                    assert dtypes() == (default, default, lz.float32)
                    assert captured(lz.arange(1, 6)).dtype is default
    finally:
        lz.set_default_dtype(lz.float32)


# -- what a trie that is given up leaves behind ---------------------------------------------------------------


def nodes_alive():
    gc.collect()
    return sum(type(o) is Node for o in gc.get_objects())


def test_new_tries_let_go_of_the_old_ones():
    net, opt = mlp()

    def era():
        for _ in range(3):
            train(net, opt, 8)
        trie.size = trie.MAX_TRIE_NODES + 1
        lz.zeros(1).realize()

    for _ in range(2):
        era()
    nodes, plans = nodes_alive(), stats()["plans"]
    for _ in range(5):
        era()
    assert nodes_alive() <= nodes and stats()["plans"] <= plans


def test_a_tensor_with_a_value_does_not_keep_the_trie_it_was_computed_in():
    kept = []
    forget_the_trie()
    before = nodes_alive()
    for k in range(5):
        x = lz.ones(k + 2)
        kept.append((x * 2).realize())
        for _ in range(300):
            x = x + 1
        x.realize()
        forget_the_trie()
    del x
    assert nodes_alive() - before < 50  # more than 1500 were recorded


def test_a_captured_function_that_is_gone_leaves_no_plan():
    x = lz.ones(3)
    lz.jit(lambda t: t * 2)(x)
    before = stats()["plans"]
    for k in range(5):
        captured = lz.jit(lambda t, k=k: t * 3 + k)
        for _ in range(4):
            captured(x)
        assert stats()["plans"] > before
        del captured
    gc.collect()
    assert stats()["plans"] <= before


def test_a_recording_goes_on_when_its_trie_is_given_up():
    """As another thread's does when it has the last node."""
    for _ in range(3):
        x = lz.ones(4)
        y = x * 2
        trie.begin_anew()
        z = (y + 1).sum()
        assert z.item() == 12 and y.tolist() == [2.0] * 4


def test_tries_given_up_by_one_thread_disturb_no_other():
    (net, opt), (expected_net, expected_opt) = [(lz.manual_seed(0), mlp())[1] for _ in range(2)]
    stop = threading.Event()

    def give_up():
        while not stop.is_set():
            trie.begin_anew()

    thread = threading.Thread(target=give_up)
    for k in range(30):
        train(expected_net, expected_opt, 8 + k % 3, seed=k)
    thread.start()
    try:
        for k in range(30):
            train(net, opt, 8 + k % 3, seed=k)
    finally:
        stop.set()
        thread.join()
    for p, q in zip(net.parameters(), expected_net.parameters(), strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())
