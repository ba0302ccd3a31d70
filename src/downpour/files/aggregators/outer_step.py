"""The outer optimizer: the step from a version toward the mean of updates.

The fold's result x̄ is the model that plain averaging would give. We take its distance from the
model x that the round began from, g = x - x̄, for a gradient, and step against it:

    sgd       m = μ m + g                          x - η m
    nesterov  m = μ m + g                          x - η (g + μ m)
    delayed-nesterov                               x - η g, and after `every` such steps also
              b = b + g                            m = μ m + b, x - η μ m, b = 0
    adagrad   m = β1 m + (1 - β1) g, v = v + g²    x - η m / (√v + τ)
    adam      m likewise, v = β2 v + (1 - β2) g²   likewise
    yogi      m likewise, v = v - (1 - β2) g² sign(v - g²)
    heloco    g' by `correction`, m' = μ m + (1 - μ) g'
                                                   x - η (g' + 2 μ m' - μ m)

`nesterov` is DiLoCo's (Douillard et al. 2023). `delayed-nesterov` is for asynchronous modes, in
which few updates make a version, often one. The momentum then comes from all shards' updates, and
not only from the last one (Liu et al. 2024, "Asynchronous Local-SGD Training for Language
Modeling", alg. 3 with c = 0; their Δ/N is g, where an update's step counts one over the shards).
`adagrad`, `adam` and `yogi` are FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021, "Adaptive
Federated Optimization", algorithm 2): τ is `epsilon`, v begins at τ², and there is no bias
correction.

`heloco` is HeLoCo (arXiv 2606.00271). There workers begin from θ - η μ m, one step of the momentum
ahead of the model θ, which steps by η (g' + μ m'). Here workers begin from the model x, and the two
steps are one.

Only trained tensors take steps. Buffers, such as running means, come from the aggregate. The state
tells them apart. It has `momentum/NAME` for each trained tensor, `variance/NAME` for a v, and
`buffer/NAME` for a b, with the number of steps. The step computes number by number in windows, in
the tensor's own precision, at least float32. So the bytes depend only on the files and, for
heloco's sums, on the size of windows.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import fsum, sqrt
from typing import TypeAlias

import numpy as np

from downpour.base.errors import FileCorrupt, NonFinite
from downpour.core.spec_fields import Outer
from downpour.files.store import Array

_ALIGNED = 0.2
_BRAKE = 0.5
_CONFIDENCE = 3.0  # κ


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The corrected step is `of_gradient` · gradient + `of_momentum` · momentum."""

    of_gradient: float
    of_momentum: float


UNCORRECTED = Correction(of_gradient=1.0, of_momentum=0.0)


def correction(windows: Iterable[tuple[Array, Array]]) -> Correction:
    """Return the correction of a tensor.

    HeLoCo (arXiv 2606.00271) is for asynchronous training with unequal workers and unequal shards,
    in which a step may be stale, or serve only one shard. A tensor has the step g, the momentum m,
    the cosine between them c, and the confidence a = |g| / (|g| + κ |m|).

    ::

        c ≥ 0.2        g stays as it is
        c < 0          g loses part of its component against m: g - β c |g| m/|m|, where
                       β = 0.5 (-c) a
        between        g turns toward m, and keeps its length: along (1 - λ) g/|g| + λ m/|m|, where
                       λ = (1 - c) a

    The paper limits β to 0.5 and λ to 1, but they are never above, because a is at most 1.

    The mode has already weighted g, like the steps that make up the momentum. In each case, the
    result is a weighted sum of g and m, so three sums over the tensor decide it.

    Args:
        windows: Its gradient and its momentum, one window [n] of both after another. We sum in
            float64 within a window, and exactly over windows.
    """
    sums = [(_dot(g, g), _dot(m, m), _dot(g, m)) for g, m in windows]
    step, momentum = sqrt(fsum(g for g, _, _ in sums)), sqrt(fsum(m for _, m, _ in sums))
    scale = step * momentum
    if not scale > 0:  # no momentum yet, or nothing to correct
        return UNCORRECTED
    cosine = min(max(fsum(both for _, _, both in sums) / scale, -1.0), 1.0)
    confidence = step / (step + _CONFIDENCE * momentum)
    if cosine >= _ALIGNED:
        return UNCORRECTED
    if cosine < 0:
        brake = -_BRAKE * cosine * confidence
        return Correction(of_gradient=1.0, of_momentum=-brake * cosine * step / momentum)
    turn = (1 - cosine) * confidence
    length = sqrt((1 - turn) ** 2 + turn**2 + 2 * turn * (1 - turn) * cosine)
    along = turn * step / (momentum * length)
    return Correction(of_gradient=(1 - turn) / length, of_momentum=along)


def _dot(one: Array, other: Array) -> float:
    # We avoid BLAS, whose sums depend on its threads.
    return float(np.sum(one.astype(np.float64) * other))


_WINDOW = 128 * 1024  # numbers: a few such arrays fit a cache
_MOMENTUM, _VARIANCE, _BUFFER = "momentum", "variance", "buffer"
_COUNT = "count/steps"

Moments: TypeAlias = dict[str, Array]
"""The state of some numbers, which a rule changes in place: momentum, and perhaps more."""
Rule: TypeAlias = Callable[[Outer, Array, Moments], Array]
"""Returns the amounts to subtract from a model's numbers, given their gradient."""


def _sgd(outer: Outer, gradient: Array, moments: Moments) -> Array:
    momentum = moments[_MOMENTUM]
    momentum *= outer.momentum
    momentum += gradient
    return outer.learning_rate * momentum


def _nesterov(outer: Outer, gradient: Array, moments: Moments) -> Array:
    momentum = moments[_MOMENTUM]
    momentum *= outer.momentum
    momentum += gradient
    return outer.learning_rate * (gradient + outer.momentum * momentum)


def _gather(outer: Outer, gradient: Array, moments: Moments) -> Array:
    moments[_BUFFER] += gradient
    step: Array = outer.learning_rate * gradient
    return step


def _turn(outer: Outer, gradient: Array, moments: Moments) -> Array:
    momentum, buffer = moments[_MOMENTUM], moments[_BUFFER]
    buffer += gradient
    momentum *= outer.momentum
    momentum += buffer
    buffer[...] = 0
    return outer.learning_rate * (gradient + outer.momentum * momentum)


def _adagrad(outer: Outer, gradient: Array, moments: Moments) -> Array:
    moments[_VARIANCE] += gradient * gradient
    return _adaptive(outer, gradient, moments)


def _adam(outer: Outer, gradient: Array, moments: Moments) -> Array:
    moments[_VARIANCE] *= outer.betas[1]
    moments[_VARIANCE] += (1 - outer.betas[1]) * (gradient * gradient)
    return _adaptive(outer, gradient, moments)


def _yogi(outer: Outer, gradient: Array, moments: Moments) -> Array:
    square = gradient * gradient
    moments[_VARIANCE] -= (1 - outer.betas[1]) * square * np.sign(moments[_VARIANCE] - square)
    return _adaptive(outer, gradient, moments)


def _adaptive(outer: Outer, gradient: Array, moments: Moments) -> Array:
    momentum = moments[_MOMENTUM]
    momentum *= outer.betas[0]
    momentum += (1 - outer.betas[0]) * gradient
    step: Array = outer.learning_rate * momentum
    return step / (np.sqrt(moments[_VARIANCE]) + outer.epsilon)


def _heloco(corrected: Correction, outer: Outer, gradient: Array, moments: Moments) -> Array:
    momentum = moments[_MOMENTUM]
    gradient = corrected.of_gradient * gradient + corrected.of_momentum * momentum
    step = gradient - outer.momentum * momentum
    momentum *= outer.momentum
    momentum += (1 - outer.momentum) * gradient
    return outer.learning_rate * (step + 2 * outer.momentum * momentum)


_RULES: Mapping[str, tuple[Rule, tuple[str, ...]]] = {
    "sgd": (_sgd, (_MOMENTUM,)),
    "nesterov": (_nesterov, (_MOMENTUM,)),
    "delayed-nesterov": (_gather, (_MOMENTUM, _BUFFER)),
    "heloco": (partial(_heloco, UNCORRECTED), (_MOMENTUM,)),
    "adagrad": (_adagrad, (_MOMENTUM, _VARIANCE)),
    "adam": (_adam, (_MOMENTUM, _VARIANCE)),
    "yogi": (_yogi, (_MOMENTUM, _VARIANCE)),
}


def first_state(
    outer: Outer, model: Mapping[str, Array], trained: Collection[str]
) -> dict[str, Array]:
    """Return the state before the first round; `trained` names the tensors that take steps."""
    begin = {_MOMENTUM: 0.0, _VARIANCE: outer.epsilon**2, _BUFFER: 0.0}
    kinds = _RULES[outer.optimizer][1]
    state: dict[str, Array] = {
        f"{kind}/{name}": np.full(model[name].shape, begin[kind], _precision(model[name]))
        for kind in kinds
        for name in trained
    }
    return {**state, _COUNT: np.zeros(1, np.int64)} if _BUFFER in kinds else state


def is_state_of(outer: Outer, state: Collection[str]) -> bool:
    """Whether a state with tensors of these names belongs to an optimizer."""
    kinds = {name.partition("/")[0] for name in state if name != _COUNT}
    return kinds == set(_RULES[outer.optimizer][1])


def take_step(
    outer: Outer,
    base: Mapping[str, Array],
    aggregate: Mapping[str, Array],
    state: Mapping[str, Array],
) -> dict[str, Array]:
    """Turn the aggregate of a round into the next model, in place.

    Args:
        outer: The optimizer; not `none`, whose next model is the aggregate itself.
        base: The model that the round began from.
        aggregate: The result of the fold; this changes its trained tensors.
        state: The state after the previous round, or the first one.

    Returns:
        The state after this round.
    """
    rule, kinds = _RULES[outer.optimizer]
    after = {name: np.array(array) for name, array in state.items()}
    if _BUFFER in kinds and _counted(after) % max(outer.every, 1) == 0:
        rule = _turn
    prefix = f"{_MOMENTUM}/"
    for name in (key.removeprefix(prefix) for key in after if key.startswith(prefix)):
        kept = [after.get(f"{kind}/{name}") for kind in kinds]
        known = base.get(name)
        if known is None or any(one is None or one.shape != known.shape for one in kept):
            raise FileCorrupt("outer state", f"belongs to another model: {name}")
        moments = {kind: after[f"{kind}/{name}"].reshape(-1) for kind in kinds}
        with np.errstate(all="ignore"):  # we check below
            sound = _step(rule, outer, known.reshape(-1), aggregate[name].reshape(-1), moments)
        if not sound:
            rate = f"outer.learning_rate = {outer.learning_rate:g}"
            raise NonFinite(f"the outer step of {name} overflows, with {rate}")
    return after


def _counted(state: dict[str, Array]) -> int:
    """Count a step; return the new count."""
    if _COUNT not in state:
        raise FileCorrupt("outer state", f"belongs to another optimizer: {_COUNT}")
    state[_COUNT] += 1
    return int(state[_COUNT][0])


def _step(rule: Rule, outer: Outer, base: Array, mean: Array, moments: Moments) -> bool:
    """Step one tensor, all flat [n]; return whether all finite numbers have stayed finite."""
    if outer.optimizer == "heloco":
        momentum = moments[_MOMENTUM]
        pairs = ((gradient, momentum[part]) for part, gradient in _gradients(base, mean))
        rule = partial(_heloco, correction(pairs))
    sound = True
    for part, gradient in _gradients(base, mean):
        x, there = base[part].astype(_precision(base)), mean[part]
        moves = np.isfinite(there)
        step = rule(outer, gradient, {kind: array[part] for kind, array in moments.items()})
        there[...] = np.where(moves, x - step, there)
        sound &= bool(np.all(np.isfinite(there) | ~moves))
    return sound


def _gradients(base: Array, mean: Array) -> Iterator[tuple[slice, Array]]:
    """Yield a flat tensor's gradient, one window after another."""
    for start in range(0, len(base), _WINDOW):
        part = slice(start, start + _WINDOW)
        x, there = base[part].astype(_precision(base)), mean[part]
        # A non-finite number in the base is a constant, and the fold has left it unchanged.
        yield part, np.where(np.isfinite(there), x - there, 0).astype(x.dtype)


def _precision(array: Array) -> np.dtype[np.float64] | np.dtype[np.float32]:
    return np.dtype(np.float64) if array.dtype == np.float64 else np.dtype(np.float32)
