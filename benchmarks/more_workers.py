"""What do more workers buy? Accuracy by epoch, seconds, steps and bytes, in virtual time.

Each run trains a spec once as the machines of `virtual_training` would, a core for each worker. A
run is added to the file as a line of JSON when it has ended, and those that are there are not run
again. Without names all runs that are missing are made: hours on one core.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Row, command_line, keep_run, kept_runs, show
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from virtual_training import Cost, Look, Trained, train

from downpour.base.errors import DownpourError
from downpour.core.modes import MODES
from downpour.core.spec import Spec
from downpour.show.figures.style import LIGHT, WIDTH_INCHES, series, styled, to_svg

STEP_SECONDS = 0.024
"""A step of 64 images of the report's network on a quiet core: docs/results/ece751.md."""
HALF_STEP_SECONDS, QUARTER_STEP_SECONDS = 0.0130, 0.0077
"""Of 32 and 16 images: 0.54 and 0.32 of the processor time of 64, measured in turns with those."""

TARGET, LEAST = 0.985, 0.95
DRAWN: Mapping[str, str] = {
    "1 worker": "report-1-linear-looked",
    "2 workers": "report-2-linear",
    "5 workers": "report-5-linear",
    "10 workers": "report-10-linear-batch-32",
    "32 workers": "report-32-linear-batch-16",
    "10, downpour": "report-10-downpour",
}

ALONE = "report-1-linear-looked"
FRONTIER: Mapping[str, str] = {
    ALONE: "1",
    "report-2-linear": "2",
    "report-5-linear": "5",
    "report-10-linear-batch-32": "10",
    "report-10-int8": "10, int8",
    "report-10-quorum": "10, quorum",
    "report-32-linear-batch-16": "32",
}

_LENET: Mapping[str, Any] = {
    "dataset": "mnist",
    "model": "lenet:build",
    "split": "random",
    "epochs": 5,
    "batch_size": 64,
    "learning_rate": 0.1,
    "momentum": 0.5,
}


_NOT_OPEN: Mapping[str, Any] = {"optimizer_state": "reset", "outer": "none"}
"""A run has what its own line says, and nothing by a rule."""


def _nesterov(momentum: float, **own: Any) -> Mapping[str, Any]:
    return {"outer": {"optimizer": "nesterov", "momentum": momentum}, **own}


_AT_TEN: Mapping[str, Mapping[str, Any]] = {
    "downpour": {},
    "downpour-delayed": {"outer": {"optimizer": "delayed-nesterov", "momentum": 0.5}},
    "downpour-heloco": {"outer": {"optimizer": "heloco", "momentum": 0.9, "learning_rate": 0.3}},
    "ssp": {},
    "easgd": {},
    "fedasync": {},
    "fedbuff": {},
    "k-async": {},
    "k-sync": _nesterov(0.8),
    "quorum": _nesterov(0.8, mode_options={"grace_seconds": 0.05}),
}
"""Modes at ten workers, with the best settings of those that two epochs were tried with."""

_LINEAR: Mapping[str, Any] = {"warmup": 0.1, "schedule": "linear", "final_rate": 0.1}

_MILDER: Mapping[str, Mapping[str, Any]] = {
    "warm": _nesterov(0.8, warmup=0.1),
    "outer-0.6": _nesterov(0.6),
    "rate-0.05": _nesterov(0.8, learning_rate=0.05),
    "linear": _nesterov(0.8, **_LINEAR),
    "linear-0.2": _nesterov(0.8, learning_rate=0.2, **_LINEAR),
    "linear-0.9": _nesterov(0.9, **_LINEAR),
    "linear-meet-20": _nesterov(0.8, **_LINEAR, meet=20),
    "linear-meet-20-outer-0.6": _nesterov(0.6, **_LINEAR, meet=20),
    "linear-0.15": _nesterov(0.8, learning_rate=0.15, **_LINEAR),
    "linear-0.01": _nesterov(0.8, **{**_LINEAR, "final_rate": 0.01}),
    "linear-epochs-10": _nesterov(0.8, **_LINEAR, epochs=10),
    "linear-epochs-20": _nesterov(0.8, **_LINEAR, epochs=20),
    "linear-outer-0.6": _nesterov(0.6, **_LINEAR),
}
"""Ten workers in rounds, with less momentum, a lower rate, or one that rises first."""

_OVERLAPPING: Mapping[str, Mapping[str, Any]] = {
    "plain": _LINEAR,
    "outer-0.4": _nesterov(0.4, **_LINEAR),
    "outer-0.6": _nesterov(0.6, **_LINEAR),
    "outer-0.8": _nesterov(0.8, **_LINEAR),
    "meet-20-outer-0.6": _nesterov(0.6, **_LINEAR, meet=20),
    "meet-20-outer-0.8": _nesterov(0.8, **_LINEAR, meet=20),
}
"""Ten workers with batches of 32 in rounds that overlap."""

_ONE_SLOW: Mapping[str, Mapping[str, Any]] = {
    "wait": _nesterov(0.8, policy="wait"),
    "handoff": _nesterov(0.8),
    "dylu": _nesterov(0.8, policy="dylu"),
    "drop": _nesterov(0.8, mode="k-sync", mode_options={"k": 7}),
    "quorum": _nesterov(0.8, mode="quorum", mode_options={"quorum": 7, "grace_seconds": 0.05}),
    "downpour": {"mode": "downpour"},
}
"""Eight workers, one of which is four times slower."""

_GPT: Mapping[str, Any] = {
    "task": "char_gpt:CharGPT",
    "epochs": 10,
    "batch_size": 32,
    "optimizer": "adamw",
    "learning_rate": 3e-3,
    "betas": [0.9, 0.99],
    "optimizer_state": "keep",
    "schedule": "cosine",
    "warmup": 0.05,
    "final_rate": 0.1,
    "clip_norm": 1.0,
}
"""That of examples/tasks/char_gpt.toml, for twice as many epochs."""

_XRAYS: Mapping[str, Any] = {
    "dataset": "npz",
    "data_path": "pneumoniamnist/pneumoniamnist.npz",
    "model": "lenet:build",
    "split": "random",
    "epochs": 20,
    "batch_size": 16,
    "learning_rate": 0.1,
    "momentum": 0.5,
    **_LINEAR,
}
"""PneumoniaMNIST with as many X-rays of both classes: 2,428 images, 25 times fewer than MNIST."""

_TOY: Mapping[str, Any] = {
    "dataset": "digits",
    "model": "digits-cnn",
    "shards": 4,
    "meet": 2,
    "epochs": 10,
    "batch_size": 32,
    "learning_rate": 0.05,
    "momentum": 0.9,
}
_TOY_MORE: Mapping[str, Mapping[str, Any]] = {
    "sync-wait": {"policy": "wait"},
    "sync-dylu": {"policy": "dylu"},
    "downpour-heloco": {
        "mode": "downpour",
        "mode_options": {"step": "root"},
        "outer": {"optimizer": "heloco", "learning_rate": 0.7, "momentum": 0.9},
    },
}
"""HeLoCo with the step and the rates of its paper, for unequal workers."""
_TOY_STEP_SECONDS = (0.58, 0.75, 1.51, 3.33)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run: the fields of its spec, what each worker's step takes, and evaluations an epoch."""

    fields: Mapping[str, Any]
    step_seconds: Sequence[float]
    looks: int = 1


def table() -> dict[str, Run]:
    """Return all runs by name, those that are worth most first."""
    report = {**_LENET, "model": "mnist-cnn", "precision": "bfloat16"}
    digits = _digits("lenet", _LENET) | _digits("report", report)
    return digits | _texts() | _xrays() | _times() | _toys()


def _run(
    base: Mapping[str, Any],
    shards: int,
    *,
    slower: float = 1,
    looks: int = 2,
    step: float = STEP_SECONDS,
    **own: Any,
) -> Run:
    """Return a run with a worker for each shard, of which the last may be slower."""
    steps = [step] * (shards - 1) + [step * slower]
    fields = {**_NOT_OPEN, **base, "shards": shards, **own}
    return Run(fields=fields, step_seconds=steps, looks=looks)


def _digits(net: str, base: Mapping[str, Any]) -> dict[str, Run]:
    """Return the runs of a network on MNIST."""
    runs = {
        "1-rate-0.1": _run(base, 1, momentum=0.0),
        "1-rate-0.2": _run(base, 1),
        "1-linear": _run(base, 1, **_LINEAR),
        "1-linear-looked": _run(base, 1, **_LINEAR, meet=10, optimizer_state="keep", looks=10),
        "1-linear-batch-32": _run(base, 1, step=HALF_STEP_SECONDS, **_LINEAR, batch_size=32),
        "10-linear-looked": _run(base, 10, meet=10, **_nesterov(0.8, **_LINEAR), looks=10),
        "2-sync": _run(base, 2, meet=10, **_nesterov(0.5)),
        "5-sync": _run(base, 5, meet=10, **_nesterov(0.8)),
        "10-sync": _run(base, 10, meet=10, **_nesterov(0.8)),
        "32-sync": _run(base, 32, meet=10, learning_rate=0.2, **_nesterov(0.8)),
    }
    for rate in (0.1, 0.2):
        rising = _nesterov(0.8, learning_rate=rate, **_LINEAR)
        runs[f"32-linear-{rate}"] = _run(base, 32, meet=10, **rising)
    for shards, batch, step in ((10, 32, HALF_STEP_SECONDS), (32, 16, QUARTER_STEP_SECONDS)):
        smaller = _nesterov(0.8, **_LINEAR, batch_size=batch, meet=10)
        runs[f"{shards}-linear-batch-{batch}"] = _run(base, shards, step=step, **smaller)
    as_chosen = {**base, **_LINEAR, "shards": 10, "batch_size": 32}
    steps = [HALF_STEP_SECONDS] * 10
    runs["10-auto-looked"] = Run(fields=as_chosen, step_seconds=steps, looks=10)
    for shards, momentum in ((2, 0.5), (5, 0.8)):
        runs[f"{shards}-linear"] = _run(base, shards, meet=10, **_nesterov(momentum, **_LINEAR))
    for name, own in _MILDER.items():
        runs[f"10-{name}"] = _run(base, 10, **{"meet": 10, **own})
    for name, own in _OVERLAPPING.items():
        way = {"meet": 10, "batch_size": 32, "overlap": 1, **own}
        runs[f"10-overlap-{name}"] = _run(base, 10, step=HALF_STEP_SECONDS, **way)
    for codec in ("int8", "topk"):
        runs[f"10-{codec}"] = _run(base, 10, meet=10, compression=codec, **_nesterov(0.8))
    for name, own in _AT_TEN.items():
        mode = name.removesuffix("-delayed").removesuffix("-heloco")
        runs[f"10-{name}"] = _run(base, 10, meet=10, mode=mode, **own)
    for name, own in _ONE_SLOW.items():
        runs[f"8-slow-{name}"] = _run(base, 8, slower=4, meet=10, **own)
    return {f"{net}-{name}": run for name, run in runs.items()}


def _texts() -> dict[str, Run]:
    """Return the runs of a language model."""
    runs = {"gpt-1": _run(_GPT, 1)}
    for shards in (4, 10):
        runs[f"gpt-{shards}-sync-plain"] = _run(_GPT, shards, meet=2)
        runs[f"gpt-{shards}-sync"] = _run(_GPT, shards, meet=2, **_nesterov(0.5))
    return runs | {"gpt-10-downpour": _run(_GPT, 10, meet=2, mode="downpour")}


def _xrays() -> dict[str, Run]:
    """Return the runs of X-rays, a small dataset."""
    runs: dict[str, Run] = {}
    for rate in (0.02, 0.05, 0.1):
        runs[f"1-rate-{rate}"] = _run(_XRAYS, 1, learning_rate=rate)
        outer = _nesterov(0.8, learning_rate=rate)
        runs[f"10-rate-{rate}"] = _run(_XRAYS, 10, meet=5, **outer)
    for shards, meet, momentum in ((2, 10, 0.5), (5, 10, 0.8), (32, 3, 0.8)):
        runs[f"{shards}-sync"] = _run(_XRAYS, shards, meet=meet, **_nesterov(momentum))
    for mode in ("quorum", "downpour", "fedbuff"):
        runs[f"10-{mode}"] = _run(_XRAYS, 10, meet=5, mode=mode, **_AT_TEN[mode])
    return {f"xrays-{name}": run for name, run in runs.items()}


def _times() -> dict[str, Run]:
    """Return runs of a network that does next to nothing: what they take is all that counts."""
    base = {**_LENET, "model": "mlp", "model_options": {"hidden": [1]}, "epochs": 2, "meet": 10}
    return {
        "times-8-even": _run(base, 8, policy="wait"),
        "times-8-slow-wait": _run(base, 8, slower=4, policy="wait"),
        "times-8-slow-handoff": _run(base, 8, slower=4),
        "times-8-slow-downpour": _run(base, 8, slower=4, mode="downpour"),
    }


def _toys() -> dict[str, Run]:
    """Return the runs of four uneven workers."""
    ways = {**{mode: {"mode": mode} for mode in MODES}, **_TOY_MORE}
    return {
        f"toy-{split}-{name}": Run(
            fields={**_TOY, "split": split, **own}, step_seconds=_TOY_STEP_SECONDS
        )
        for split in ("random", "class")
        for name, own in ways.items()
    }


def record(name: str, run: Run, seed: int, done: Trained) -> dict[str, Any]:
    """Return what is kept of a run."""
    delays = sorted(done.staleness)
    return {
        "name": name,
        "seed": seed,
        "spec": dict(run.fields),
        "step_seconds": list(run.step_seconds),
        "looks": [_looked(look) for look in done.looks],
        "seconds": round(done.seconds, 3),
        "critical_steps": max(done.steps.values()),
        "uploaded_bytes": done.uploaded_bytes,
        "downloaded_bytes": done.downloaded_bytes,
        "staleness_mean": round(statistics.mean(delays), 3),
        "staleness_p99": delays[math.ceil(0.99 * len(delays)) - 1],
    }


def _looked(look: Look) -> dict[str, Any]:
    return {
        "epochs": round(look.epochs, 3),
        "seconds": round(look.seconds, 3),
        "loss": round(look.loss, 5),
        **{name: round(value, 5) for name, value in look.metrics.items()},
    }


def make(name: str, seed: int, path: Path, data_dir: Path | None) -> None:
    """Make a run, and add it to the file."""
    run = table()[name]
    spec = Spec.make({"name": "more-workers", "seed": seed, **run.fields})

    def tell(look: Look) -> None:
        print(name, seed, _looked(look), flush=True)

    cost = Cost(step_seconds=tuple(run.step_seconds))
    try:
        done = train(spec, cost, data_dir, looks=run.looks, seed=seed, show=tell)
        line = record(name, run, seed, done)
    except DownpourError as error:
        line = {"name": name, "seed": seed, "spec": dict(run.fields), "error": str(error)}
    keep_run(path, line)


def rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each run that has ended."""
    return [
        {
            "run": one["name"],
            "seed": one["seed"],
            "accuracy_percent": 100 * one["looks"][-1].get("accuracy", math.nan),
            "seconds": one["seconds"],
            "critical_steps": one["critical_steps"],
            "uploaded_mb": one["uploaded_bytes"] / 1e6,
            "downloaded_mb": one["downloaded_bytes"] / 1e6,
            "staleness_mean": one["staleness_mean"],
            "staleness_p99": one["staleness_p99"],
        }
        for one in records
        if "error" not in one
    ]


def time_to(records: Sequence[Mapping[str, Any]], accuracy: float) -> dict[str, float | None]:
    """Return when each run first had an accuracy; None if it never had."""
    reached: dict[str, float | None] = {}
    for one in records:
        good = (look["seconds"] for look in one["looks"] if look.get("accuracy", 0) >= accuracy)
        reached[f"{one['name']}/{one['seed']}"] = next(good, None)
    return reached


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw accuracy over time by the number of workers, and what speed-up costs in bytes."""
    by_name = {one["name"]: one for one in records if one["seed"] == 0 and "error" not in one}
    with styled(path.stem):
        figure = Figure(figsize=(WIDTH_INCHES, 1.1 * WIDTH_INCHES), layout="constrained")
        above, below = figure.subplots(2)
        _draw_accuracy(above, by_name)
        _draw_frontier(below, by_name)
    path.write_text(to_svg(figure, path.stem), "utf-8")


def _draw_accuracy(axis: Axes, by_name: Mapping[str, Mapping[str, Any]]) -> None:
    for place, (label, name) in enumerate(DRAWN.items()):
        if name in by_name:
            looks = [look for look in by_name[name]["looks"] if look["accuracy"] >= LEAST]
            seconds = [look["seconds"] for look in looks]
            axis.plot(seconds, [100 * x["accuracy"] for x in looks], label=label, **series(place))
    axis.axhline(100 * TARGET, linewidth=0.6, color=LIGHT["ink"], zorder=1)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_xlabel("seconds of training, a core for each worker")
    axis.set_ylabel("test accuracy in %")
    axis.legend()


def _draw_frontier(axis: Axes, by_name: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw how much sooner than one worker runs had the target, over what they sent by then."""
    first = {name: _first_at_target(by_name[name]) for name in FRONTIER if name in by_name}
    alone = first.get(ALONE)
    for name, there in first.items():
        if there is not None and alone is not None:
            point = there[1] / 1e6, alone[0] / there[0]
            axis.plot(*point, marker="o", markersize=4, color=LIGHT["ink"])
            axis.annotate(FRONTIER[name], point, xytext=(5, 4), textcoords="offset points")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_xlabel(f"MB sent to {100 * TARGET:g} %")
    axis.set_ylabel("times as fast as one worker")
    axis.margins(0.2)


def _first_at_target(one: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the seconds and the bytes sent until a run first had the target; None if never."""
    for look in one["looks"]:
        if look["accuracy"] >= TARGET:
            return look["seconds"], one["uploaded_bytes"] * look["epochs"] / one["spec"]["epochs"]
    return None


def main() -> None:
    """Make the runs that are missing, and print a line a run."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", help="runs, each NAME or NAME/SEED; without any: all")
    parser.add_argument("--out", default="benchmarks/out/more-workers.jsonl", help="what is kept")
    parser.add_argument("--figure", type=Path, help="only draw what is kept into this SVG")
    arguments = parser.parse_args()
    path = Path(arguments.out)
    if arguments.figure is not None:
        draw(kept_runs(path), arguments.figure)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    data = os.environ.get("DOWNPOUR_DATA")
    os.environ["DOWNPOUR_ALLOW"] = "lenet,char_gpt"
    sys.path.append(str(Path(__file__).parents[1] / "examples" / "tasks"))
    there = {(one["name"], one["seed"]) for one in kept_runs(path)}
    for each in arguments.names or table():
        name, _, seed = each.partition("/")
        if (name, int(seed or 0)) not in there:
            make(name, int(seed or 0), path, Path(data) if data else None)
    show(rows(kept_runs(path)), as_json=arguments.json)


if __name__ == "__main__":
    main()
