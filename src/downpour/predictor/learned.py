"""Simple predictors, trained ones, and the file in which trained ones are kept.

A learned model compares the rest of a task with an expectation: the worker's running rate or, after
a report, the pace of that report. It predicts how much longer the rest takes. So its weights hold
for machines of any speed and tasks of any size, and it never predicts an end before the latest
report. We use numpy, so that predicting need not import torch.
"""

import statistics
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np

from downpour.base.errors import FileCorrupt, SpecError
from downpour.files.store.header import decode, encode
from downpour.host.paths import read_user_file
from downpour.predictor import features as f
from downpour.predictor.calibration import Tracker, above_elapsed, stages
from downpour.predictor.features import Array, Histories

_LIMIT = 10.0  # a factor of 22,000; above it, `exp` of a broken model's answer could overflow
# If neither a worker nor its cluster has a history, we only know the order of magnitude. A tenth of
# the tasks take less than 0.22 times the usual time, a fiftieth more than 12 times.
_UNKNOWN = (-1.5, 0.0, 1.5, 2.5)
# The same as equally likely values. Their number is odd, so that one of them is the median.
_UNKNOWN_VALUES = np.interp(
    (np.arange(201) + 0.5) / 201, [0.0, *f.LEVELS, 1.0], [-2.5, *_UNKNOWN, 3.0]
)


class Learned(ABC):
    """A model that predicts offsets from the inputs of `Histories`."""

    def __init__(self) -> None:
        self._histories = Histories()

    @abstractmethod
    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:
        """Return the quantiles (rows, 4) of the log of actual over expected time, in rising order.

        A task is a worker's number, a row of `features.INPUTS`, and whether it has reported.
        """

    def advance_states(self, at: Array, events: Array, fresh: Array) -> None:  # noqa: B027 - may do nothing
        """Take in finished tasks (`features.EVENTS`); `fresh` marks workers' first tasks."""

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles of the logarithm of the tasks' seconds."""
        at = self._histories.find(workers)
        inputs, base, size = self._histories.describe(at, tasks)
        reported = tasks[:, f.SHARE] > 0
        offsets = np.clip(self.offsets(at, inputs, reported), -_LIMIT, _LIMIT)
        strange = (at == 0) & ~reported
        if strange.any():
            offsets[strange] = for_a_stranger(self._histories.times_across_workers())
        return total_from_rest(offsets + (base + size)[:, None], tasks)

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Take in finished tasks of different workers."""
        at = self._histories.add(workers)
        fresh = self._histories.are_new(at)  # before they learn
        self.advance_states(at, self._histories.learn(at, tasks, seconds), fresh)


def for_a_stranger(times: Array) -> Array:
    """Return the quantiles (4,) of how a worker without a past compares with its cluster.

    We treat the worker as one more draw from the same source as the workers' `times`. So each time
    stands for one of n + 1 draws, as in split conformal prediction (Vovk, Gammerman and Shafer
    2005). The last draw stands for workers unlike all of these, of which we know only the order of
    magnitude. We don't ask models here: no worker in the traces joins late, so they haven't learned
    to answer.
    """
    values = np.concatenate([times, _UNKNOWN_VALUES])
    # We use whole numbers, because rounded sums of fractions could miss a level that is met
    # exactly.
    weights = np.repeat([len(_UNKNOWN_VALUES), 1], [len(times), len(_UNKNOWN_VALUES)])
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    quantiles: Array = values[order][np.searchsorted(share, f.LEVELS)]
    return quantiles


def total_from_rest(rest: Array, tasks: Array) -> Array:
    """Return the log of tasks' seconds from that of their rest, scaled to a whole task."""
    share, elapsed = f.progress_of(tasks)
    total: Array = np.log(elapsed[:, None] + (1 - share)[:, None] * np.exp(rest))
    return total


def rest_from_total(tasks: Array, seconds: Array) -> Array:
    """Return the log seconds of tasks' rest, scaled to a whole task: inverts `total_from_rest`."""
    share, elapsed = f.progress_of(tasks)
    # If a result came right after its report, the rest is 0, which has no logarithm.
    rest: Array = np.log(np.maximum(seconds - elapsed, 1e-3 * seconds) / (1 - share))
    return rest


# Inputs that are logarithms of ratios: small differences matter as well as large ones.
RATIOS = tuple(
    f.INPUTS.index(name)
    for name in (
        "fast", "middle", "last", "before_last", "tail", "head", "drift", "lowest", "median",
        "highest", "cluster", "cluster_last", "alike", "alike_lately", "size", "alike_at_start",
        "pace", "recent_pace", "lately_faster", "pace_alike", "alike_now",
    )
)  # fmt: skip
# The network also gets each such ratio as `sign(r) log(1 + |r| / 0.03) / 2`, which is steep near 0.
# It matters whether a worker is 1 or 4 % slower, not only whether it is twice as slow.
RATIO_UNIT, RATIO_SCALE = 0.03, 0.5
FAR = 6.0  # standard deviations: inputs beyond all training inputs are moved to this distance
KINDS = ("assigned", "reported")


def shapes(nets: int, units: int, wide: int, narrow: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array of the network."""
    seen = len(f.INPUTS) + len(RATIOS) + units
    by_name: dict[str, tuple[int, ...]] = {
        "inputs.center": (len(f.INPUTS),),
        "inputs.scale": (len(f.INPUTS),),
        "events.center": (len(f.EVENTS),),
        "events.scale": (len(f.EVENTS),),
        "cell.event": (nets, len(f.EVENTS), 4 * units),
        "cell.state": (nets, units, 4 * units),
        "cell.bias": (nets, 1, 4 * units),
    }
    for kind in KINDS:
        by_name[f"{kind}.wide"] = (nets, seen, wide)
        by_name[f"{kind}.wide_bias"] = (nets, 1, wide)
        by_name[f"{kind}.narrow"] = (nets, wide, narrow)
        by_name[f"{kind}.narrow_bias"] = (nets, 1, narrow)
        by_name[f"{kind}.out"] = (nets, narrow, 4)
        by_name[f"{kind}.out_bias"] = (nets, 1, 4)
        by_name[f"{kind}.skip"] = (nets, seen, 4)
    return by_name


class Lstm(Learned):
    """Predicts with trained nets; `arrays` have the shapes that `shapes` returns.

    A finished task is an event that moves its worker's state. A prediction passes the state and the
    inputs of the task through one of two small networks (docs/concepts/forecasts.md). Several such
    nets answer with the mean of their quantiles.

    `downpour_lab/fitting/training.py` makes the weights, which do not change while a job runs. When
    we fine-tuned them on the run at hand, predictions got worse for about the first eighty rounds.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take the nets' weights."""
        super().__init__()
        self._arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        nets, units, _ = self._arrays["cell.state"].shape
        self._states = np.zeros((2, nets, 16, units), np.float32)  # hidden, cell

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:
        """Return the quantiles of the log of actual over expected time."""
        self._grow()
        seen = self._seen(at, inputs)
        if reported.all() or not reported.any():  # saves copying rows
            return self._quantiles(KINDS[int(reported[0])], seen)
        quantiles = np.empty((len(at), 4))
        for kind, rows in zip(KINDS, (~reported, reported), strict=True):
            quantiles[rows] = self._quantiles(kind, seen[:, rows])
        return quantiles

    def advance_states(self, at: Array, events: Array, fresh: Array) -> None:
        """Move the states of the workers whose tasks have finished."""
        self._grow()
        self._states[:, :, at[fresh]] = 0  # a forgotten worker's number may have gone to a new one
        hidden, cell = self._states[:, :, at]
        a = self._arrays
        scaled = (events - a["events.center"]) / a["events.scale"]
        gates = scaled @ a["cell.event"] + hidden @ a["cell.state"] + a["cell.bias"]
        keep, forget, new, show = np.split(gates, 4, axis=-1)
        cell = _sigmoid(forget) * cell + _sigmoid(keep) * np.tanh(new)
        self._states[0][:, at], self._states[1][:, at] = _sigmoid(show) * np.tanh(cell), cell

    def _seen(self, at: Array, inputs: Array) -> Array:
        """Return the networks' inputs: (nets, rows, inputs and ratios and hidden state)."""
        a = self._arrays
        scaled = np.clip((inputs - a["inputs.center"]) / a["inputs.scale"], -FAR, FAR)
        ratios = inputs[:, RATIOS]
        fine = np.sign(ratios) * np.log1p(np.abs(ratios) / RATIO_UNIT) * RATIO_SCALE
        hidden = self._states[0][:, at]
        both = np.concatenate([scaled, fine], axis=1)
        return np.concatenate([np.broadcast_to(both, (len(hidden), *both.shape)), hidden], axis=2)

    def _quantiles(self, kind: str, seen: Array) -> Array:
        part = {name: self._arrays[f"{kind}.{name}"] for name in _PARTS}
        wide = _silu(seen @ part["wide"] + part["wide_bias"])
        narrow = _silu(wide @ part["narrow"] + part["narrow_bias"])
        raw = narrow @ part["out"] + part["out_bias"] + seen @ part["skip"]
        mean: Array = spread_out(raw).mean(axis=0).astype(np.float64)
        return mean

    def _grow(self) -> None:
        """Make room for every worker's state, doubling it so that we rarely copy."""
        if (missing := len(self._histories) - self._states.shape[2]) > 0:
            more = max(missing, self._states.shape[2])
            self._states = np.pad(self._states, [(0, 0), (0, 0), (0, more), (0, 0)])


_PARTS: Sequence[str] = (
    "wide", "wide_bias", "narrow", "narrow_bias", "out", "out_bias", "skip",
)  # fmt: skip


def spread_out(raw: Array) -> Array:
    """Return quantiles from a network's outputs: a median, and distances away from it."""
    away = np.logaddexp(0, raw)
    middle = raw[..., f.MEDIAN]
    upper = middle + away[..., 2]
    parts = [middle - away[..., 0], middle, upper, upper + away[..., 3]]
    return np.stack(parts, axis=-1)


def _sigmoid(x: Array) -> Array:
    # The hyperbolic tangent never overflows, unlike exp(-x) for large negative x.
    return 0.5 * (np.tanh(0.5 * x) + 1)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


FORMAT = "downpour-predictor"
VERSION = "1"

_SHIPPED = "pretrained.safetensors"
_LARGE = 64  # elements: in smaller arrays, 16 bits would save too little to be worth the rounding
_RIDGE = {
    "weights": (2, len(f.INPUTS)),
    "center": (2, len(f.INPUTS)),
    "scale": (2, len(f.INPUTS)),
    "spread": (2, 4),
}


_BYTES_MAX = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of training: the arrays of both models, and the checksum of the traces."""

    lstm: Mapping[str, Array] = field(repr=False)
    ridge: Mapping[str, Array] = field(repr=False)
    traces: str


def write_trained(path: Path, trained: Trained) -> int:
    """Write a predictor's file, and return its size in bytes.

    We store large arrays as 16-bit numbers, which changes predictions by less than their noise. The
    file names the version of this layout and the traces that the models were trained on.
    """
    tensors = {f"ridge.{name}": array for name, array in trained.ridge.items()}
    for name, array in trained.lstm.items():
        large = array.size > _LARGE and not name.endswith((".center", ".scale"))
        tensors[f"lstm.{name}"] = array.astype(np.float16 if large else np.float32)
    metadata = {"format": FORMAT, "version": VERSION, "traces": trained.traces}
    content = b"".join(encode(tensors, metadata))
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SpecError("out", str(path), f"cannot be written ({error.strerror})") from None
    return len(content)


def read_trained(path: Path | None = None) -> Trained:
    """Read a predictor's file; without a path, read the shipped one."""
    shipped = resources.files("downpour.predictor") / _SHIPPED
    name = str(path or _SHIPPED)
    try:
        content = read_user_file(path, _BYTES_MAX) if path else shipped.read_bytes()
        file = decode(content, name)
    except OSError as error:
        raise SpecError("predictor", name, f"cannot be read ({error.strerror})") from None
    except FileCorrupt as error:
        raise SpecError("predictor", name, error.reason) from None
    if file.metadata.get("format") != FORMAT:
        raise SpecError("predictor", name, "is not a predictor's file")
    if (version := file.metadata.get("version")) != VERSION:
        raise SpecError("predictor", name, f"has version {version}, but must have {VERSION}")
    trained = Trained(
        lstm=_part("lstm.", file.tensors),
        ridge=_part("ridge.", file.tensors),
        traces=file.metadata.get("traces", ""),
    )
    _check(name, trained)
    return trained


def _part(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    own = {name: array for name, array in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): array.astype(np.float32) for name, array in own.items()}


def _check(name: str, trained: Trained) -> None:
    """Refuse arrays whose shapes don't fit a predictor with today's inputs."""
    stored = {key: array.shape for key, array in trained.lstm.items()}
    # Two arrays give the sizes of the nets, which a user may choose; all other shapes follow.
    state, wide = stored.get("cell.state", ()), stored.get("assigned.narrow", ())
    if len(state) != 3 or len(wide) != 3 or stored != shapes(*state[:2], *wide[1:]):
        raise SpecError("predictor", name, "does not hold the nets of a predictor")
    if {key: array.shape for key, array in trained.ridge.items()} != _RIDGE:
        raise SpecError("predictor", name, "does not hold the ridge of a predictor")
    arrays = [*trained.lstm.values(), *trained.ridge.values()]
    if not all(np.isfinite(array).all() for array in arrays):
        raise SpecError("predictor", name, "holds weights that are not finite")


# The first offsets of the quantiles: log seconds, at assignment and at early and late reports.
_SPREAD = ((-0.15, 0.0, 0.25, 0.7), (-0.08, 0.0, 0.15, 0.45), (-0.05, 0.0, 0.1, 0.3))
_RATE = 0.004  # faster than for a calibrated model, because these offsets begin as a guess


class Point(ABC):
    """A model that predicts one time per sample for each worker.

    The quantiles follow the predictor's own errors so far. After a report of progress, the expected
    time is the time so far over the share done.
    """

    def __init__(self) -> None:
        self._tracker = Tracker(_SPREAD, _RATE)

    @abstractmethod
    def predicted_rate(self, worker: str) -> float | None:
        """Return the log seconds per sample that a worker will need; None before any task ended."""

    @abstractmethod
    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Take in the log seconds per sample of a finished task."""

    def predict(self, workers: Sequence[str], tasks: Array) -> Array:
        """Return the quantiles of the logarithm of the tasks' seconds."""
        # Each offset moves separately, so neighboring ones could cross.
        offsets = np.maximum.accumulate(self._tracker.offsets(stages(tasks)), axis=1)
        return above_elapsed(self._centers(workers, tasks)[:, None] + offsets, tasks)

    def learn(self, workers: Sequence[str], tasks: Array, seconds: Array) -> None:
        """Take in finished tasks: first the errors of their predictions, then their times."""
        outcomes = np.log(seconds)
        # We predicted a task with a report twice, so it moves the offsets of both stages.
        reported = np.isfinite(tasks[:, f.SHARE]).any()
        for rows in (f.before_reports(tasks), *([tasks] if reported else [])):
            errors = outcomes - self._centers(workers, rows)
            self._tracker.learn(stages(rows), np.repeat(errors[:, None], 4, axis=1))
        for worker, time in zip(workers, (outcomes - f.log_samples(tasks)).tolist(), strict=True):
            self.observe_rate(worker, time)

    def _centers(self, workers: Sequence[str], tasks: Array) -> Array:
        expected = [self.predicted_rate(worker) for worker in workers]
        rates = np.array([f.START_LOG_SECONDS if rate is None else rate for rate in expected])
        at_pace = f.log_seconds_at_pace(tasks)
        return np.where(tasks[:, f.SHARE] > 0, at_pace, rates + f.log_samples(tasks))


BEYOND = 3.0  # standard deviations: further out, a straight line does not hold


class Ridge(Learned):
    """Linear in the inputs, with quantiles at a fixed distance from the center.

    Arrays for both kinds of prediction, first at assignment, then after reports: `weights`,
    `center` and `scale` of shape `(2, inputs)`, and `spread` of shape `(2, 4)`.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        """Take the arrays of a fit (`fit_ridge` of the laboratory)."""
        super().__init__()
        self._arrays = {name: array.astype(np.float64) for name, array in arrays.items()}

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:  # noqa: ARG002
        """Return the quantiles of the log of actual over expected time."""
        kind = reported.astype(int)
        scaled = (inputs - self._arrays["center"][kind]) / self._arrays["scale"][kind]
        scaled = np.clip(scaled, -BEYOND, BEYOND)
        center: Array = (scaled * self._arrays["weights"][kind]).sum(axis=1)
        quantiles: Array = center[:, None] + self._arrays["spread"][kind]
        return quantiles


_TASKS = 200  # of the whole cluster: few enough for the median to follow changes


class Median(Point):
    """Predicts the median time per sample of the cluster's last tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._times: deque[float] = deque(maxlen=_TASKS)
        self._median: float | None = None

    def predicted_rate(self, worker: str) -> float | None:  # noqa: ARG002 - the same for all
        """Return the cluster's median."""
        if self._median is None and self._times:
            self._median = statistics.median(self._times)
        return self._median

    def observe_rate(self, worker: str, log_seconds: float) -> None:  # noqa: ARG002
        """Count the task among the last ones."""
        self._times.append(log_seconds)
        self._median = None


_FADING = 0.5  # the weight of a new time; all earlier times together have the rest


class Ewma(Point):
    """Predicts an exponentially weighted mean of each worker's log times per sample.

    A new worker has the cluster's median.
    """

    def __init__(self) -> None:
        super().__init__()
        self._means: dict[str, float] = {}
        self._cluster = Median()

    def predicted_rate(self, worker: str) -> float | None:
        """Return the worker's mean, or the cluster's median for a new worker."""
        mean = self._means.get(worker)
        return self._cluster.predicted_rate(worker) if mean is None else mean

    def observe_rate(self, worker: str, log_seconds: float) -> None:
        """Move the worker's mean toward its latest time."""
        mean = self._means.get(worker, log_seconds)
        self._means[worker] = self._moved(mean, log_seconds)
        self._cluster.observe_rate(worker, log_seconds)

    def _moved(self, mean: float, latest: float) -> float:
        return mean + _FADING * (latest - mean)


class LastValue(Ewma):
    """Predicts each worker's last time per sample."""

    def _moved(self, mean: float, latest: float) -> float:
        del mean
        return latest
