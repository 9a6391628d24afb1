"""L-BFGS: a quasi-Newton method, which evaluates the loss as often as it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lezero.optim.checks import not_negative
from lezero.optim.optimizer import Optimizer, ParamsT
from lezero.tensor import Tensor, cat, enable_grad, no_grad, tensor, zeros


class LBFGS(Optimizer):
    """Limited-memory BFGS (Nocedal 1980) on all parameters together.

    The loss and scalar products are read, so each evaluation runs by itself, and ``lz.jit`` refuses the step.

    Parameters
    ----------
    params : parameters or (name, parameter) pairs, in one group
    lr : float
        The length of a step along the direction, or where the line search begins.
    max_iter : int
        Iterations in one ``step``.
    max_eval : int
        Evaluations of the loss in one ``step``; ``max_iter * 5 // 4`` by default.
    tolerance_grad : float
        Stop where no element of the gradient is larger.
    tolerance_change : float
        Stop where neither the loss nor any parameter changes by more.
    history_size : int
        How many past steps the curvature is estimated from.
    line_search_fn : {None, "strong_wolfe"}
        Whether steps have a length that satisfies the strong Wolfe conditions (Nocedal & Wright 2006, algorithms 3.5, 3.6).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )

    def _check(self, name: str, group: dict[str, Any]) -> None:
        not_negative(name, group, "lr", "tolerance_grad", "tolerance_change")
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise ValueError(f"{name}: line_search_fn is None or 'strong_wolfe', got {group['line_search_fn']!r}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise ValueError("LBFGS: all parameters are in one group")
        super().add_param_group(param_group)

    def _matches_parameter(self, key: str) -> bool:
        return False  # the state is that of all parameters, under the first

    def _restored(self, number: int, p: Tensor, key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [None if v is None else super(LBFGS, self)._restored(number, p, key, v) for v in value]
        return super()._restored(number, p, key, value)

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Iterate; `closure` clears the gradients, computes the loss, calls ``backward`` and returns the loss."""
        if closure is None:
            raise TypeError(
                "LBFGS: step() needs a closure that clears the gradients, computes the loss and calls backward"
            )
        return _Step(self, enable_grad()(closure)).run()


class _Point(NamedTuple):
    """A step length, with the loss, its gradient, and the slope along the direction there."""

    t: float
    loss: float
    grad: Tensor
    slope: float


class _Step:
    """One call of ``step``; names in the state are PyTorch's."""

    def __init__(self, optimizer: LBFGS, closure: Callable[[], Any]):
        (group,) = optimizer.param_groups
        self.group, self.params, self.closure = group, group["params"], closure
        self.state = optimizer.state[self.params[0]]
        self.state.setdefault("func_evals", 0)
        self.state.setdefault("n_iter", 0)
        self.evaluations = 0

    def run(self) -> Any:
        group, state = self.group, self.state
        first, loss, grad = self._evaluate()
        if _largest(grad) <= group["tolerance_grad"]:
            return first
        for n in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            d = self._direction(grad)
            state["prev_flat_grad"], state["prev_loss"] = grad, loss
            initial = min(1.0, 1.0 / float(grad.abs().sum())) if state["n_iter"] == 1 else 1.0
            t, slope = initial * float(group["lr"]), _dot(grad, d)
            state["d"], state["t"] = d, t
            if slope > -group["tolerance_change"]:
                break
            before = loss
            if group["line_search_fn"] is not None:
                start = _Point(0.0, loss, grad, slope)
                t, loss, grad, _ = _strong_wolfe(self._along(d), start, t, _largest(d), self._left())
                self._move(d, t)
            else:
                self._move(d, t)
                if n != group["max_iter"]:  # the value there is asked for by the next step
                    _, loss, grad = self._evaluate()
            state["t"] = t
            if n == group["max_iter"] or self._left() <= 0 or _largest(grad) <= group["tolerance_grad"]:
                break
            change = group["tolerance_change"]
            if _largest(d) * abs(t) <= change or abs(loss - before) < change:
                break
        return first

    def _left(self) -> int:
        return self.group["max_eval"] - self.evaluations

    def _evaluate(self) -> tuple[Any, float, Tensor]:
        result = self.closure()
        self.evaluations += 1
        self.state["func_evals"] += 1
        grads = [zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad.reshape(-1) for p in self.params]
        return result, float(result), cat(grads).detach().realize()

    def _move(self, d: Tensor, t: float) -> None:
        at = 0
        for p in self.params:
            p.add_(d[at : at + p.numel()].reshape(p.shape), alpha=t)
            at += p.numel()

    def _along(self, d: Tensor) -> Callable[[float], _Point]:
        """The loss at a step length along `d`, from where the parameters are now."""
        start = [p.clone().realize() for p in self.params]

        def at(t: float) -> _Point:
            self._move(d, t)
            _, loss, grad = self._evaluate()
            for p, value in zip(self.params, start):
                p.copy_(value)
            return _Point(t, loss, grad, _dot(grad, d))

        return at

    def _direction(self, grad: Tensor) -> Tensor:
        """Minus the gradient times the estimated inverse Hessian (Nocedal & Wright 2006, algorithm 7.4)."""
        state = self.state
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return (-grad).realize()
        self._remember(grad - state["prev_flat_grad"], state["d"] * state["t"])
        changes, steps, ro = state["old_dirs"], state["old_stps"], state["ro"]
        q, al = -grad, [None] * len(ro)
        for i in reversed(range(len(ro))):
            al[i] = steps[i].dot(q) * ro[i]
            q = q - al[i] * changes[i]
        r = q * state["H_diag"]
        for i in range(len(ro)):
            r = r + (al[i] - changes[i].dot(r) * ro[i]) * steps[i]
        state["al"] = [*al, *[None] * (self.group["history_size"] - len(al))]
        return r.realize()

    def _remember(self, change: Tensor, step: Tensor) -> None:
        """Keep a change of the gradient and the step that made it, where the loss curves upwards between."""
        state, product = self.state, _dot(change, step)
        if product <= 1e-10:
            return
        history = state["old_dirs"], state["old_stps"], state["ro"]
        if len(state["ro"]) == self.group["history_size"]:
            for kept in history:
                kept.pop(0)
        for kept, value in zip(history, (change.realize(), step.realize(), tensor(1.0 / product, dtype=change.dtype))):
            kept.append(value)
        state["H_diag"] = product / _dot(change, change)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.dot(b))


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _strong_wolfe(
    at: Callable[[float], _Point], start: _Point, t: float, size: float, budget: int, c1: float = 1e-4, c2: float = 0.9,
    tolerance: float = 1e-9,
) -> _Point:  # fmt: skip
    """A step that lowers the loss enough, and after which it falls much more slowly; at most `budget` more evaluations."""

    def too_high(p: _Point) -> bool:
        return p.loss > start.loss + c1 * p.t * start.slope

    def flat(p: _Point) -> bool:
        return abs(p.slope) <= -c2 * start.slope

    before, now, tried = start, at(t), 0
    while tried < budget:
        if too_high(now) or (tried > 1 and now.loss >= before.loss):
            break
        if flat(now):
            return now
        if now.slope >= 0:
            break
        bounds = now.t + 0.01 * (now.t - before.t), now.t * 10
        before, now = now, at(_cubic_minimum(before, now, bounds))
        tried += 1
    else:
        before = start
    return _zoom(at, [before, now], size, budget - tried, tolerance, too_high, flat)


def _zoom(
    at: Callable[[float], _Point], bracket: list[_Point], size: float, budget: int, tolerance: float,
    too_high: Callable[[_Point], bool], flat: Callable[[_Point], bool],
) -> _Point:  # fmt: skip
    """The best step found while the bracket around one that satisfies the conditions is made smaller."""
    low = _lower(bracket)
    stuck = False
    for _ in range(budget):
        if abs(bracket[1].t - bracket[0].t) * size < tolerance:
            break
        t, stuck = _away_from_ends(_cubic_minimum(*bracket), sorted(p.t for p in bracket), stuck)
        new = at(t)
        if too_high(new) or new.loss >= bracket[low].loss:
            bracket[1 - low] = new
            low = _lower(bracket)
            continue
        done = flat(new)
        if not done and new.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = new
        if done:
            break
    return bracket[low]


def _lower(bracket: list[_Point]) -> int:
    return 0 if bracket[0].loss <= bracket[1].loss else 1


def _away_from_ends(t: float, ends: list[float], stuck: bool) -> tuple[float, bool]:
    """(the step, whether it is near an end): the second time in a row it is moved a tenth of the way from that end."""
    first, last = ends
    margin = 0.1 * (last - first)
    if min(last - t, t - first) >= margin:
        return t, False
    if not stuck and first < t < last:
        return t, True
    return (last - margin if abs(t - last) < abs(t - first) else first + margin), False


def _cubic_minimum(a: _Point, b: _Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with these slopes is smallest (Nocedal & Wright 2006, equation 3.59)."""
    a, b = (a, b) if a.t <= b.t else (b, a)
    first, last = bounds or (a.t, b.t)
    if a.t == b.t:
        return (first + last) / 2
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    divisor = b.slope - a.slope + 2 * max(square, 0.0) ** 0.5
    if square < 0 or divisor == 0:
        return (first + last) / 2
    return min(max(b.t - (b.t - a.t) * ((b.slope + square**0.5 - d1) / divisor), first), last)
