"""Linear algebra against PyTorch's, with gradients and gradients of gradients."""

import numpy as np
import pytest

import lezero as lz
from lezero import linalg

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)


def regular(*shape):
    return RNG.normal(size=shape)


def positive(*shape):
    x = RNG.normal(size=shape)
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1])


def singular(n):
    x = RNG.normal(size=(n, n))
    x[-1] = x[0]
    return x


def array(x):
    """A gradient of PyTorch's or ours as an array, zeros where there is none."""
    if x is None:
        return 0
    x = x.detach()
    return x.resolve_conj().resolve_neg().numpy(force=True) if isinstance(x, torch.Tensor) else x.numpy()


def symmetric(a):
    return (a + a.mT) / 2


def exponential(w, v):
    return (v * w.unsqueeze(-2).exp()) @ v.mT


def squared(u, s, vh):
    return (u * s.unsqueeze(-2) ** 2) @ vh


A, B, V = regular(2, 3, 3), regular(2, 3, 2), regular(2, 3)
# name: (a call of torch.linalg's or ours, arrays); results that depend on a sign are multiplied so that they do not
CASES = {
    "inv": (lambda m, a: m.inv(a), A),
    "inv of nothing": (lambda m, a: m.inv(a), regular(2, 0, 0)),
    "solve": (lambda m, a, b: m.solve(a, b), A, B),
    "solve of vectors": (lambda m, a, b: m.solve(a, b), A, V),
    "solve of a batch with one": (lambda m, a, b: m.solve(a, b), A, regular(3, 2)),
    "solve of one with a batch": (lambda m, a, b: m.solve(a, b), A[0], B),
    "solve from the right": (lambda m, a, b: m.solve(a, b, left=False), A, regular(2, 4, 3)),
    "solve_triangular": (lambda m, a, b: m.solve_triangular(a, b, upper=True), A, B),
    "solve_triangular lower": (lambda m, a, b: m.solve_triangular(a, b, upper=False, unitriangular=True), A, B),
    "solve_triangular from the right": (
        lambda m, a, b: m.solve_triangular(a, b, upper=False, left=False), A, regular(2, 2, 3)
    ),
    "pinv": (lambda m, a: m.pinv(a), regular(2, 4, 3)),
    "pinv wide": (lambda m, a: m.pinv(a), regular(3, 5)),
    "pinv hermitian": (lambda m, a: m.pinv(symmetric(a), hermitian=True), A),
    "lstsq": (lambda m, a, b: m.lstsq(a, b).solution, regular(2, 5, 3), regular(2, 5, 2)),
    "lstsq residuals": (lambda m, a, b: m.lstsq(a, b, driver="gelsd").residuals, regular(5, 3), regular(5, 2)),
    "det": (lambda m, a: m.det(a), A),
    "det of a singular one": (lambda m, a: m.det(a), singular(4)),
    "det of nothing": (lambda m, a: m.det(a), regular(2, 0, 0)),
    "slogdet": (lambda m, a: m.slogdet(a)[1], A),
    "sign of slogdet": (lambda m, a: m.slogdet(a.detach())[0], A),
    "cholesky": (lambda m, a: m.cholesky(symmetric(a)), positive(2, 4, 4)),
    "cholesky upper": (lambda m, a: m.cholesky(symmetric(a), upper=True), positive(3, 3)),
    "cholesky of nothing": (lambda m, a: m.cholesky(a), regular(0, 0)),
    "Q": (lambda m, a: m.qr(a)[0], regular(2, 4, 3)),
    "R": (lambda m, a: m.qr(a)[1], regular(2, 4, 3)),
    "Q wide": (lambda m, a: m.qr(a)[0], regular(3, 5)),
    "R wide": (lambda m, a: m.qr(a)[1], regular(3, 5)),
    "Q complete": (lambda m, a: m.qr(a.detach(), "complete")[0], regular(4, 2)),
    "R alone": (lambda m, a: m.qr(a.detach(), "r")[1], regular(4, 2)),
    "eigenvalues": (lambda m, a: m.eigh(symmetric(a))[0], A),
    "eigenvectors": (lambda m, a: m.eigh(symmetric(a))[1] ** 2, A),
    "eigenvectors and values": (lambda m, a: exponential(*m.eigh(symmetric(a))), A),
    "eigh of one triangle": (lambda m, a: m.eigvalsh(a.detach(), "U"), A),
    "eigvalsh of equal ones": (lambda m, a: m.eigvalsh(a), np.eye(3)),
    "eigvals": (lambda m, a: (m.eigvals(a) ** 3).abs(), A),
    "eig, vectors": (lambda m, a: m.eig(a)[1].abs(), A),
    "eig, both": (lambda m, a: (m.eig(a)[1].abs() ** 2 @ m.eig(a)[0].abs().unsqueeze(-1)), A),
    "singular values": (lambda m, a: m.svdvals(a), regular(2, 3, 4)),
    "U": (lambda m, a: m.svd(a, full_matrices=False)[0] ** 2, regular(4, 3)),
    "Vh": (lambda m, a: m.svd(a, full_matrices=False)[2] ** 2, regular(2, 3, 4)),
    "U S Vh": (lambda m, a: squared(*m.svd(a, full_matrices=False)), regular(2, 4, 3)),
    "svd of full matrices": (lambda m, a: m.svd(a)[0][:, :3] ** 2, regular(5, 3)),
    "svd of nothing": (lambda m, a: m.svd(a, full_matrices=False)[1], regular(2, 0, 3)),
    "matrix_exp": (lambda m, a: m.matrix_exp(a), A),
    "matrix_exp large": (lambda m, a: m.matrix_exp(a * 10), regular(4, 4)),
    "matrix_power": (lambda m, a: m.matrix_power(a, 3), A),
    "matrix_power inverse": (lambda m, a: m.matrix_power(a, -2), A),
    "multi_dot": (lambda m, a, b, c: m.multi_dot([a, b, c]), regular(2, 5), regular(5, 3), regular(3, 4)),
    "multi_dot of vectors": (lambda m, a, b, c: m.multi_dot([a, b, c]), regular(5), regular(5, 3), regular(3)),
    "cross": (lambda m, a, b: m.cross(a, b), regular(4, 3), regular(1, 3)),
    "vecdot": (lambda m, a, b: m.vecdot(a, b, dim=0), regular(4, 3), regular(4, 3)),
    "diagonal": (lambda m, a: m.diagonal(a, offset=1), regular(2, 4, 3)),
    "vander": (lambda m, a: m.vander(a, N=4), regular(2, 3)),
    "tensorinv": (lambda m, a: m.tensorinv(a), regular(2, 3, 6)),
    "cond": (lambda m, a: m.cond(a), A),
    "cond of a norm": (lambda m, a: m.cond(a.detach(), "fro"), A),
    "norm": (lambda m, a: m.norm(a), A),
    "norm of columns": (lambda m, a: m.norm(a, 3, dim=1), A),
    "norm of a matrix": (lambda m, a: m.norm(a, "nuc"), A[0]),
    **{
        f"vector_norm {ord}": (lambda m, a, ord=ord: m.vector_norm(a, ord, dim=(0, 2), keepdim=True), A)
        for ord in (1, 2, 3.5, -1, float("inf"), float("-inf"))
    },
    **{
        f"matrix_norm {ord}": (lambda m, a, ord=ord: m.matrix_norm(a, ord, (0, 2), keepdim=True), regular(3, 2, 4))
        for ord in ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf"))
    },
    "vector_norm 0": (lambda m, a: m.vector_norm(a.detach().round(), 0), A),
    "matrix_rank": (lambda m, a: m.matrix_rank(a), np.stack([singular(4), regular(4, 4)])),
    "matrix_rank with a tolerance": (lambda m, a: m.matrix_rank(a, atol=0.5, rtol=0.1), A),
    "matrix_rank hermitian": (lambda m, a: m.matrix_rank(symmetric(a), hermitian=True), A),
}  # fmt: skip
ONCE = ("singular one", "wide", "complete", "large", "equal", "hermitian", "nothing")


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_pytorchs(name):
    call, *arrays = CASES[name]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [lz.tensor(a, requires_grad=True) for a in arrays]
    wanted, found = call(torch.linalg, *theirs), call(linalg, *ours)
    assert str(found.dtype).split(".")[-1] == str(wanted.dtype).split(".")[-1]
    assert tuple(found.shape) == tuple(wanted.shape)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-9, atol=1e-11)
    if not wanted.requires_grad:
        return
    weights = np.random.default_rng(1).normal(size=wanted.shape)
    gradients = torch.autograd.grad(
        (wanted * torch.tensor(weights)).sum(), theirs, create_graph=True, allow_unused=True
    )
    mine = lz.autograd.grad((found * lz.tensor(weights)).sum(), ours, create_graph=True, allow_unused=True)
    for g, t in zip(mine, gradients):
        np.testing.assert_allclose(array(g), array(t), rtol=1e-7, atol=1e-9)
    if any(word in name for word in ONCE) or not any(t is not None and t.requires_grad for t in gradients):
        return
    second = torch.autograd.grad(sum((t**2).sum() for t in gradients if t is not None), theirs, allow_unused=True)
    mine = lz.autograd.grad(sum((g**2).sum() for g in mine if g is not None), ours, allow_unused=True)
    for g, t in zip(mine, second):
        np.testing.assert_allclose(array(g), array(t), rtol=1e-5, atol=1e-7)


COMPLEX = {
    "inv": lambda m, a: m.inv(a),
    "det": lambda m, a: m.det(a),
    "solve": lambda m, a: m.solve(a, a @ a),
    "slogdet": lambda m, a: m.slogdet(a)[1],
    "cholesky": lambda m, a: m.cholesky(a @ a.mH),
    "eigvalsh": lambda m, a: m.eigvalsh(a @ a.mH),
    "eigvals": lambda m, a: m.eigvals(a),
    "eig": lambda m, a: m.eig(a)[1].abs() * m.eig(a)[0].abs().unsqueeze(-2),
    "R": lambda m, a: m.qr(a)[1].abs(),
    "singular values": lambda m, a: m.svdvals(a),
    "matrix_exp": lambda m, a: m.matrix_exp(a),
    "pinv": lambda m, a: m.pinv(a),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_matrices(name):
    a = regular(2, 3, 3) + 1j * regular(2, 3, 3)
    t, o = torch.tensor(a, requires_grad=True), lz.tensor(a, requires_grad=True)
    wanted, found = COMPLEX[name](torch.linalg, t), COMPLEX[name](linalg, o)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-9, atol=1e-10)
    (wanted.abs() ** 2).sum().backward()
    (found.abs() ** 2).sum().backward()
    np.testing.assert_allclose(o.grad.numpy(), t.grad.numpy(), rtol=1e-7, atol=1e-9)


def test_outer_and_trace():
    a = lz.tensor(A)
    np.testing.assert_allclose(linalg.trace(a, offset=1).numpy(), np.trace(A, 1, -2, -1))
    np.testing.assert_allclose(linalg.outer(a[0, 0], a[1, 1]).numpy(), np.outer(A[0, 0], A[1, 1]))


def test_what_lstsq_finds_besides():
    a, b = regular(5, 3), regular(5)
    for driver in (None, "gelsy", "gelsd", "gelss", "gels"):
        wanted = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b).unsqueeze(-1), driver=driver)
        found = linalg.lstsq(lz.tensor(a), lz.tensor(b).unsqueeze(-1), driver=driver)
        for mine, other in zip(found, wanted):
            assert tuple(mine.shape) == tuple(other.shape)
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-9)
    assert linalg.lstsq(lz.tensor(a), lz.tensor(b)).solution.shape == (3,)


def test_bad_matrices_are_refused():
    with pytest.raises(linalg.LinAlgError):
        linalg.inv(lz.zeros(2, 2))
    with pytest.raises(linalg.LinAlgError):
        linalg.cholesky(-lz.eye(2))
    with pytest.raises(ValueError, match=r"inv: square matrices are needed, got shape \(2, 3\)"):
        linalg.inv(lz.zeros(2, 3))
    with pytest.raises(ValueError, match="two dimensions or more"):
        linalg.svdvals(lz.zeros(3))
    with pytest.raises(TypeError, match=r"det: float32.*got int64"):
        linalg.det(lz.ones(2, 2, dtype=lz.int64))
    with pytest.raises(ValueError, match="complete"):
        linalg.qr(lz.ones(3, 2, requires_grad=True), "complete")
    assert linalg.slogdet(lz.zeros(2, 2))[1].item() == float("-inf")


def test_values_are_read_and_a_captured_function_is_refused():
    x = lz.rand(3, 3) * 2
    y = linalg.inv(x + lz.eye(3))  # what is recorded runs
    np.testing.assert_allclose((y @ (x + lz.eye(3))).numpy(), np.eye(3), atol=1e-4)
    captured = lz.jit(lambda a: linalg.inv(a).sum())
    with pytest.raises(RuntimeError, match="a value is read"):
        captured(lz.eye(3))


@pytest.mark.parametrize("ord", [-3, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, np.inf, -np.inf])
def test_gradients_of_norms_at_zeros_are_pytorchs(ord):
    a = np.array([[0.0, 2.0, 3.0], [1.0, -2.0, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    x, z = lz.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    y = lz.linalg.vector_norm(x, ord, dim=1)
    want = torch.linalg.vector_norm(z, ord, dim=1)
    np.testing.assert_allclose(y.detach().numpy(), want.detach().numpy(), rtol=1e-12)
    y.sum().backward()
    want.sum().backward()
    if ord == 0:
        assert x.grad is None and z.grad is None
    else:
        np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-12)
