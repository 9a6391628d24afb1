"""Compare an operation with PyTorch: values, gradients and gradients of gradients, each by both roads.

The two roads are the operations' NumPy references, node by node, and the same graph taken apart by every ``decompose`` rule
until only primitives are left.
"""

from __future__ import annotations

import numpy as np
import pytest

from lezero.autograd.walk import walk
from lezero.graph.dtype import as_dtype
from lezero.graph.node import Node, toposort, with_inputs
from lezero.ops.expr import Expr, evaluate, leaf

try:
    import torch
except ImportError:  # the comparison is skipped, everything else here works
    torch = None


def track(outputs):
    """Mark what the gradient walk goes through."""
    for node in toposort(outputs):
        if node.inputs:
            node.tracks = node.op.differentiable and node.dtype.differentiable and any(n.tracks for n in node.inputs)


def take_apart(outputs):
    """The outputs computed by primitives alone."""

    done: dict[Node, Node] = {}

    def primitive(node, inputs):
        if node.op.decompose is None:
            return with_inputs(node, inputs)
        expr = node.op.decompose(*map(Expr, inputs), **node.named_attrs())
        assert tuple(expr.shape) == tuple(node.shape), f"{node!r} comes apart into shape {expr.shape}"
        assert expr.dtype is node.dtype, f"{node!r} comes apart into {expr.dtype}"
        return settle(expr.node)

    def settle(output):
        for node in toposort([output]):
            if node not in done:
                done[node] = node if node.op.is_leaf else primitive(node, tuple(done[n] for n in node.inputs))
                done[done[node]] = done[node]
        return done[output]

    return [settle(node) for node in outputs]


def both_roads(outputs, values, tol):
    """Values by reference, checked against the values by decomposition."""
    direct = evaluate(outputs, values)
    apart = evaluate(take_apart(outputs), values)
    for a, b in zip(direct, apart):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=tol, atol=tol)
    return direct


def make_leaves(arrays, differentiate=True):
    leaves, values = [], {}
    for a in arrays:
        x = leaf(a.shape, as_dtype(a.dtype))
        x.node.tracks = differentiate and x.dtype.differentiable
        leaves.append(x)
        values[x.node] = a
    return leaves, values


def close(ours, theirs, tol):
    np.testing.assert_allclose(
        np.asarray(ours, np.float64), theirs.detach().numpy(force=True).astype(np.float64), rtol=tol, atol=tol
    )


def check(ours, theirs, *arrays, tol=1e-10, order=2, frozen=(), seed=0):
    """`ours` maps Exprs to an Expr, `theirs` torch tensors to a tensor; derivatives are compared up to `order`."""
    if torch is None:
        pytest.skip("PyTorch is not installed")
    arrays = [np.asarray(a) for a in arrays]
    leaves, values = make_leaves(arrays)
    tensors = [torch.from_numpy(a.copy()) for a in arrays]
    for k, (x, t) in enumerate(zip(leaves, tensors)):
        x.node.tracks = x.node.tracks and k not in frozen
        t.requires_grad_(x.node.tracks)
    y, z = ours(*leaves), theirs(*tensors)
    (value,) = both_roads([y.node], values, tol)
    assert value.shape == tuple(z.shape)
    close(value, z, tol)
    if not order:
        return value
    rng = np.random.default_rng(seed)
    dy = rng.standard_normal(value.shape).astype(value.dtype)
    (up,), more = make_leaves([dy])
    values |= more
    track([y.node])
    inputs, targets = leaves, tensors
    seeds = {y.node: up}
    tup = torch.from_numpy(dy).requires_grad_()
    scalar_loss = (z * tup).sum()
    for level in range(order):
        grads = walk(seeds, Expr)
        wanted = [t for t in targets if t.requires_grad]
        expected = torch.autograd.grad(scalar_loss, wanted, create_graph=level + 1 < order, allow_unused=True)
        known = [x for x in inputs if x.node.tracks]
        found = [(grads[x.node], g) for x, g in zip(known, expected) if g is not None and x.node in grads]
        for x, g in zip(known, expected):
            assert x.node in grads or g is None or not g.any(), f"no gradient for {x}"
        for g, t in zip(both_roads([g.node for g, _ in found], values, tol), found):
            assert tuple(g.shape) == tuple(t[1].shape)
            close(g, t[1], tol)
        if level + 1 == order:
            break
        track([g.node for g, _ in found])
        seeds, terms = {}, []
        for g, t in found:
            if not t.requires_grad or not g.node.tracks:
                continue
            c = rng.standard_normal(tuple(t.shape))
            (co,), more = make_leaves([c.astype(dy.dtype)], differentiate=False)
            values |= more
            seeds[g.node] = seeds[g.node] + co if g.node in seeds else co
            terms.append((t * torch.from_numpy(c.astype(dy.dtype))).sum())
        inputs, targets = [*leaves, up], [*tensors, tup]
        scalar_loss = sum(terms)
        if not terms:
            break
    return value
