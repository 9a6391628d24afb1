"""Weight and spectral normalisation."""

from __future__ import annotations

from lezero.nn.functional import normalize
from lezero.nn.module import Module
from lezero.nn.parameter import constant_tensor
from lezero.nn.utils.parametrize import register_parametrization
from lezero.tensor import Tensor, no_grad, randn


class _WeightNorm(Module):
    """``g * v / ‖v‖`` with norms over all dimensions but one (or over all)."""

    def __init__(self, dim: int | None):
        super().__init__()
        self.dim = dim

    def _norm(self, v: Tensor) -> Tensor:
        axes = None if self.dim is None else tuple(i for i in range(v.ndim) if i != self.dim % v.ndim)
        return v.norm(2, axes, keepdim=True) if axes is not None else v.norm()

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / self._norm(v))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._norm(weight), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Length and direction of a weight as parameters of their own (Salimans & Kingma 2016): `original0` and `original1`.

    dim : the dimension along which vectors have a length each; None for one length
    """
    return register_parametrization(module, name, _WeightNorm(dim))


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, which power iteration follows in training."""

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float):
        super().__init__()
        if n_power_iterations < 1:
            raise ValueError(f"spectral_norm: n_power_iterations is positive, got {n_power_iterations}")
        self.dim, self.eps, self.n_power_iterations = dim % weight.ndim, eps, n_power_iterations
        with no_grad():
            matrix = self._matrix(weight)
            rows, columns = (int(d) for d in matrix.shape)
            u = normalize(randn(rows, dtype=weight.dtype), dim=0, eps=eps)
            v = normalize(randn(columns, dtype=weight.dtype), dim=0, eps=eps)
            self.register_buffer("_u", constant_tensor(u.numpy()))
            self.register_buffer("_v", constant_tensor(v.numpy()))
            self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        if self.dim:
            weight = weight.permute(self.dim, *(i for i in range(weight.ndim) if i != self.dim))
        return weight.reshape(weight.shape[0], -1)

    @no_grad()
    def _iterate(self, matrix: Tensor, times: int) -> None:
        u, v = self._u, self._v
        for _ in range(times):
            u = normalize(matrix @ v, dim=0, eps=self.eps)
            v = normalize(matrix.mT @ u, dim=0, eps=self.eps)
        self._u.copy_(u)
        self._v.copy_(v)

    def forward(self, weight: Tensor) -> Tensor:
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        sigma = (self._u.clone() * (matrix @ self._v.clone())).sum()
        return weight / sigma

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Keep a weight's largest singular value at 1 (Miyato et al. 2018)."""
    weight = getattr(module, name)
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    return register_parametrization(module, name, _SpectralNorm(weight.detach(), n_power_iterations, dim, eps))
