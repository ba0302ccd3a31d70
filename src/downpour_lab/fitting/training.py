"""Trains predictors: the LSTM, the ridge regressions, and the trees."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from downpour.predictor.features import INPUTS, LEVELS, MEDIAN, Array
from downpour.predictor.learned import (
    BEYOND,
    FAR,
    KINDS,
    RATIO_SCALE,
    RATIO_UNIT,
    RATIOS,
    Learned,
    Trained,
    shapes,
)
from downpour_lab.fitting.training_data import Step, TaskSequences, TrainingSet

# The median counts most, because policies compare workers by it.
_LEVEL_WEIGHTS = (0.7, 2.0, 0.8, 0.3)
_SMALL_AT_START = ("out", "skip")  # so that the first predictions are near the expected time
_SCALE_MIN = 0.05  # an input that hardly varies in the traces must not explode on other machines


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How to train the nets; the defaults make the shipped file."""

    nets: int = 2
    epochs: int = 60
    batch: int = 24  # sequences
    units: int = 48
    wide: int = 96
    narrow: int = 32
    learning_rate: float = 6e-3
    weight_decay: float = 1e-3
    dropout: float = 0.1  # of the states that predictions read
    seed: int = 0


def train_lstm(
    sequences: Sequence[TaskSequences],
    settings: TrainingSettings,
    step: Callable[[float], None] = lambda _: None,
) -> dict[str, Array]:
    """Return the weights of the nets, as `Lstm` takes them.

    A sequence is all tasks of one worker in a job. The loss is the pinball loss of the log of a
    whole task's seconds, even if we predict only the rest of it. So a report late in a task weighs
    as little as the short rest that it leaves. Half of the batches come from the traces as they
    are. The other half come from augmented copies (`training_data.augment`), if there are any, so
    that the net copes with other scales of load, noise and missing features. The same sequences,
    settings and seed give the same weights on one build of torch.

    We call `step` after each epoch of each net with its mean loss.
    """
    # We use one thread. With several, the sums and so the weights would depend on their number.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scales = _scales(sequences[0])
        data = [_tensors(one, scales) for one in sequences]
        nets = [
            _Training(settings, settings.seed + net).run(data, step) for net in range(settings.nets)
        ]
    finally:
        torch.set_num_threads(threads)
    stacked = {name: np.stack([weights[name] for weights in nets]) for name in nets[0]}
    return scales | stacked


class _Training:
    """One net and its optimizer."""

    def __init__(self, settings: TrainingSettings, seed: int) -> None:
        self._settings = settings
        self._generator = np.random.default_rng(seed)
        self._torch = torch.Generator().manual_seed(seed)
        self._weights = self._start()
        self._optimizer = torch.optim.AdamW(
            self._weights.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def run(self, data: list[dict[str, Any]], step: Callable[[float], None]) -> dict[str, Array]:
        settings, count = self._settings, len(data[0]["seconds"])
        batches = max(1, count // settings.batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer,
            settings.learning_rate,
            total_steps=settings.epochs * batches,
            pct_start=0.15,
        )
        for _ in range(settings.epochs):
            losses = []
            for batch in self._batches(data, batches):
                self._optimizer.zero_grad()
                loss = self._loss(batch)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0)
                self._optimizer.step()
                schedule.step()
                losses.append(loss.item())
            step(float(np.mean(losses)))
        return {name: weight.detach().numpy() for name, weight in self._weights.items()}

    def _batches(self, data: list[dict[str, Any]], batches: int) -> Iterator[dict[str, Any]]:
        order = self._generator.permutation(len(data[0]["seconds"]))
        for picked in np.array_split(order, batches):
            varied = len(data) > 1 and self._generator.random() < 0.5
            source = data[self._generator.integers(1, len(data)) if varied else 0]
            yield {name: part if name in _SHARED else part[picked] for name, part in source.items()}

    def _start(self) -> dict[str, Any]:
        """Return the first weights: uniform, with torch's bound for the number of inputs."""
        s = self._settings
        weights = {}
        for name, shape in shapes(1, s.units, s.wide, s.narrow).items():
            if name.startswith(("inputs.", "events.")):
                continue
            fan = s.units if name.startswith("cell.") else _fan(name, s)
            weight = (torch.rand(shape[1:], generator=self._torch) * 2 - 1) / fan**0.5
            if name.endswith("out_bias"):
                # After softplus, the first distances from the median are -0.08, 0.13 and 0.2.
                weight = torch.tensor([[-2.5, 0.0, -2.0, -1.5]])
            elif name.endswith(_SMALL_AT_START):
                weight *= 0.2
            weights[name] = weight.requires_grad_()
        return weights

    def _loss(self, batch: dict[str, Any]) -> torch.Tensor:
        hidden = self._dropped(self._hidden(batch["events"]))
        # We compute every state, but learning from half of the predictions is enough.
        length = hidden.shape[1]
        some = torch.from_numpy(np.sort(self._generator.permutation(length)[: (length + 1) // 2]))
        hidden = hidden[:, some]
        batch = {n: part if n in _NOT_BY_TASK else part[:, some] for n, part in batch.items()}
        raw = []
        for kind, ways in zip(KINDS, batch["ways"], strict=True):
            if len(ways):
                raw.append(self._head(kind, batch["inputs"][:, :, ways], hidden))
        order = torch.cat(list(batch["ways"])).argsort()
        rest = _spread_out(torch.cat(raw, dim=2)[:, :, order]) + batch["rest"][..., None]
        total = torch.log(batch["elapsed"][..., None] + torch.exp(rest.clamp(max=30)))
        errors = torch.log(batch["seconds"])[:, :, None, None] - total
        levels = torch.tensor(LEVELS)
        losses = torch.maximum(levels * errors, (levels - 1) * errors)
        pinball = losses @ torch.tensor(_LEVEL_WEIGHTS)
        weights = batch["usable"] * batch["weights"]
        loss: torch.Tensor = (pinball * weights).sum() / weights.sum().clamp(min=1)
        return loss

    def _hidden(self, events: torch.Tensor) -> torch.Tensor:
        """Return every worker's state before each of its tasks."""
        w, units = self._weights, self._settings.units
        flat = [w["cell.event"].T, w["cell.state"].T, w["cell.bias"][0], torch.zeros(4 * units)]
        start = torch.zeros(1, len(events), units)
        hidden, _, _ = torch.lstm(
            events, (start, start), flat, True, 1, 0.0, True, False, True  # noqa: FBT003
        )  # fmt: skip
        return torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)

    def _dropped(self, hidden: torch.Tensor) -> torch.Tensor:
        keep = 1 - self._settings.dropout
        mask = torch.rand(hidden.shape, generator=self._torch) < keep
        return hidden * mask / keep

    def _head(self, kind: str, inputs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        ways = inputs.shape[2]
        seen = torch.cat([inputs, hidden[:, :, None].expand(-1, -1, ways, -1)], dim=3)
        w, silu = self._weights, torch.nn.functional.silu
        wide = silu(seen @ w[f"{kind}.wide"] + w[f"{kind}.wide_bias"])
        narrow = silu(wide @ w[f"{kind}.narrow"] + w[f"{kind}.narrow_bias"])
        raw: torch.Tensor = (
            narrow @ w[f"{kind}.out"] + w[f"{kind}.out_bias"] + seen @ w[f"{kind}.skip"]
        )
        return raw


_SHARED = ("ways", "weights")
_NOT_BY_TASK = (*_SHARED, "events")


def _fan(name: str, settings: TrainingSettings) -> int:
    """Return the fan-in of a layer: the number of inputs that each of its outputs sums."""
    part = name.partition(".")[2]
    seen = len(INPUTS) + len(RATIOS) + settings.units
    if part.startswith("narrow"):
        return settings.wide
    return settings.narrow if part.startswith("out") else seen


def _spread_out(raw: torch.Tensor) -> torch.Tensor:
    """Return quantiles from outputs, as `lstm.spread_out` does."""
    away = torch.nn.functional.softplus(raw)
    middle = raw[..., 1]
    upper = middle + away[..., 2]
    return torch.stack([middle - away[..., 0], middle, upper, upper + away[..., 3]], dim=-1)


def _scales(sequences: TaskSequences) -> dict[str, Array]:
    """Return the means and scales that normalize inputs and events."""
    is_task = sequences.usable.any(axis=2)  # the rest is padding
    rows_of = {"inputs": sequences.inputs[sequences.usable], "events": sequences.events[is_task]}
    return {f"{name}.center": rows.mean(axis=0) for name, rows in rows_of.items()} | {
        f"{name}.scale": np.maximum(rows.std(axis=0), _SCALE_MIN) for name, rows in rows_of.items()
    }


def _tensors(sequences: TaskSequences, scales: dict[str, Array]) -> dict[str, Any]:
    """Return sequences as the training reads them: scaled once, before the first epoch."""
    inputs = (sequences.inputs - scales["inputs.center"]) / scales["inputs.scale"]
    events = (sequences.events - scales["events.center"]) / scales["events.scale"]
    ratios = sequences.inputs[..., RATIOS]
    fine = np.sign(ratios) * np.log1p(np.abs(ratios) / RATIO_UNIT) * RATIO_SCALE
    seen = np.concatenate([np.clip(inputs, -FAR, FAR), fine], axis=-1)
    share = torch.tensor(sequences.share, dtype=torch.float32)
    reported = share > 0
    # We know less at assignment, but most decisions are made then.
    weights = torch.where(reported, 5.0 / reported.sum().clamp(min=1), 1.2)
    return {
        "inputs": torch.from_numpy(seen.astype(np.float32)),
        "events": torch.from_numpy(events.astype(np.float32)),
        "rest": torch.from_numpy(sequences.expected) + torch.log1p(-share),
        "elapsed": torch.from_numpy(sequences.elapsed),
        "seconds": torch.from_numpy(sequences.seconds),
        "usable": torch.from_numpy(sequences.usable),
        "ways": [torch.nonzero(~reported)[:, 0], torch.nonzero(reported)[:, 0]],
        "weights": weights,
    }


_PENALTY = 30.0  # in samples: small compared with the tens of thousands of a trace


def fit_ridge(sequences: TaskSequences) -> dict[str, Array]:
    """Fit both regressions in closed form; the quantiles of their residuals are the spread.

    If the traces have no reports of progress, the second regression has nothing to learn from. It
    then extrapolates, and is as unsure as the one at assignment.
    """
    assigned = _fit(*sequences.rows(reported=False))
    inputs, target = sequences.rows(reported=True)
    unreported = {**assigned, "weights": np.zeros_like(assigned["weights"])}
    parts = [assigned, _fit(inputs, target) if len(inputs) else unreported]
    return {name: np.stack([part[name] for part in parts]).astype(np.float32) for name in assigned}


def _fit(inputs: Array, target: Array) -> dict[str, Array]:
    center, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-3)
    x = np.clip((inputs - center) / scale, -BEYOND, BEYOND).astype(np.float64)
    gram = x.T @ x + _PENALTY * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x.T @ (target - target.mean()))
    spread = np.quantile(target - x @ weights, LEVELS)
    return {"weights": weights, "center": center, "scale": scale, "spread": spread}


Ensembles: TypeAlias = list[list[Any]]
"""For each kind of prediction, one fitted ensemble per quantile."""

_ROWS_MAX = 120_000  # from more rows, we draw a sample
_OTHERS = 0.4  # the share of the median's iterations that the other, less important quantiles get


class Trees(Learned):
    """Predicts with fitted ensembles: four quantiles for each kind of prediction.

    We fit them where we use them and never store them, because scikit-learn stores trees only as
    pickles.
    """

    def __init__(self, ensembles: Ensembles) -> None:
        super().__init__()
        self._ensembles = ensembles
        self._threads = _threads()

    def offsets(self, at: Array, inputs: Array, reported: Array) -> Array:  # noqa: ARG002
        """Return the quantiles of the log of actual over expected time."""
        quantiles = np.zeros((len(inputs), len(LEVELS)))
        with self._threads.limit(limits=1):
            for kind in np.unique(reported):
                here = reported == kind
                fitted = self._ensembles[int(kind)] or self._ensembles[0]
                parts = [ensemble.predict(inputs[here]) for ensemble in fitted]
                # Each quantile has its own trees, so they may cross; sorting never adds error.
                quantiles[here] = np.sort(np.stack(parts, axis=1), axis=1)
        return quantiles


def fit_trees(
    sequences: TaskSequences, step: Callable[[], None] = lambda: None, iterations: int = 200
) -> Ensembles:
    """Fit all ensembles; call `step` after each of the eight.

    Without tasks that have reported, none are fitted for these.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    ensembles: Ensembles = []
    for reported in (False, True):
        inputs, target = sequences.rows(reported=reported)
        if len(target) > _ROWS_MAX:
            picked = np.random.default_rng(0).choice(len(target), _ROWS_MAX, replace=False)
            inputs, target = inputs[picked], target[picked]
        ensembles.append([])
        for place, level in enumerate(LEVELS):
            is_median = place == MEDIAN
            ensemble = HistGradientBoostingRegressor(
                loss="quantile",
                quantile=level,
                max_iter=iterations if is_median else int(iterations * _OTHERS),
                learning_rate=0.07 if is_median else 0.12,
                min_samples_leaf=40,
                early_stopping=False,
                random_state=0,
            )
            if len(target):
                with _threads().limit(limits=1):
                    ensembles[-1].append(ensemble.fit(inputs, target))
            step()
    return ensembles


def _threads() -> Any:
    """Return a controller of scikit-learn's threads, which spin if they share cores."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def train(
    training_set: TrainingSet,
    jobs: Sequence[int],
    settings: TrainingSettings,
    step: Step = lambda _: None,
) -> Trained:
    """Train every model of a file on some jobs; call `step` after each epoch of each net."""
    plain, other = training_set.plain.of(jobs), training_set.augmented.of(jobs)
    return Trained(
        ridge=fit_ridge(plain),
        lstm=train_lstm([plain, other], settings, lambda loss: step(f"training ({loss:.4f})")),
        traces=training_set.traces,
    )
