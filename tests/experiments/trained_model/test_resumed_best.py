"""`--resume` with `keep_best` and `stop_after`: it decides as if there had been no stop.

The runs call the model with the largest loss the best, so the first epoch's model is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import downpour
from downpour.base.errors import ExperimentFailed, SpecError
from downpour.experiments.locating import resumed_spec
from downpour.files.store import RECORD_NAME
from tests.experiments.trained_model.conftest import run_here

pytestmark = pytest.mark.slow

SPEC = downpour.Spec(
    shards=2,
    epochs=6,
    train_limit=400,
    test_limit=100,
    keep_best="max:loss",
    stop_after=3,
    optimizer_state="reset",
)


def resumed(result: downpour.Result | str, shared: Path, **changes: Any) -> downpour.Result:
    """Continue an experiment."""
    name = result if isinstance(result, str) else result.experiment
    return run_here(downpour.resumed(name, shared=shared, **changes), shared)


def models_of(result: downpour.Result) -> list[bytes]:
    """Return the final and the best model, if it has one."""
    assert result.model_file is not None
    best = result.model_file.with_name("best.safetensors")
    return [file.read_bytes() for file in (result.model_file, best) if file.is_file()]


def stopped(result: downpour.Result, shared: Path, *, after: int, evaluated: int) -> str:
    """Leave what is in the folder when someone kills a run after some of its rounds."""
    folder = shared / "experiments" / f"stopped-{after}-{evaluated}"
    assert result.model_file is not None
    shutil.copytree(result.model_file.parent, folder)
    for file in folder.glob("*.safetensors"):
        parts = file.name.split("-")
        if len(parts) == 1 or (parts[0] == "model" and int(parts[1]) > after):
            file.unlink()
    kept = []
    for text in (folder / RECORD_NAME).read_text().splitlines():
        line = json.loads(text)
        last = evaluated if line["kind"] in {"measured", "improved"} else after
        if line["kind"] != "finished" and line.get("round", 0) < last:
            kept.append(f"{text}\n")
    (folder / RECORD_NAME).write_text("".join(kept))
    return folder.name


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        ({}, (2,)),
        ({}, (1, 2, 3)),
        # Such large steps diverge after the first epoch.
        ({"keep_best": None, "learning_rate": 0.2, "batch_size": 8}, (2,)),
        ({"stop_after": None}, (3,)),
        ({"evaluate_every": 2, "stop_after": 2, "keep_models": 9}, (3,)),
        ({"validation": 0.2}, (2,)),
        ({"meet": 2, "compression": "int3", "model_compression": "int3"}, (1, 2)),
        ({"overlap": 1, "stop_after": None}, (2,)),
    ],
    ids=[
        "both",
        "three stops",
        "patience alone",
        "best alone",
        "every second epoch",
        "validation",
        "versions as steps",
        "overlap",
    ],
)
def test_the_best_model_and_the_patience_go_on(
    shared: Path, fields: dict[str, Any], stops: tuple[int, ...]
) -> None:
    """It ends with the same epochs, the same final model and the same best one."""
    spec = SPEC.replace(**fields)
    whole, part = run_here(spec, shared), run_here(spec.replace(epochs=stops[0]), shared)
    for epochs in (*stops[1:], 6):
        part = resumed(part, shared, epochs=epochs)
    assert part.epochs[-1].epoch == whole.epochs[-1].epoch == (6 if spec.stop_after is None else 4)
    assert models_of(part) == models_of(whole)
    assert part.best is not None
    assert whole.best is not None
    assert (part.best.epoch, part.best.value) == (whole.best.epoch, whole.best.value)
    assert part.reason == whole.reason
    assert part.tested == whole.tested


@pytest.mark.parametrize("evaluated", [1, 2, 3])
def test_a_version_that_was_not_evaluated_yet_is_evaluated_first(
    shared: Path, evaluated: int
) -> None:
    """A killed run may be up to two evaluations behind; the last version may be the best one."""
    spec = SPEC.replace(keep_best="loss", stop_after=2, keep_models=9)
    whole = run_here(spec, shared)
    name = stopped(whole, shared, after=3, evaluated=evaluated)
    spec = downpour.resumed(name, shared=shared)
    rest = run_here(spec, shared)
    assert models_of(rest) == models_of(whole)
    assert [number for number in _losses(rest) if number < 0] == list(range(evaluated - 3, 0))
    assert [epoch.epoch for epoch in rest.epochs] == [4, 5, 6]


def test_of_shards_that_are_rounds_apart_the_version_that_ended_a_round_is_evaluated(
    shared: Path,
) -> None:
    """A run was killed with the fifth of six updates: two rounds had ended, with every second."""
    fields = {"mode": "downpour", "epochs": 3, "stop_after": None, "keep_models": 9}
    whole = run_here(SPEC.replace(**fields), shared)
    spec = downpour.resumed(stopped(whole, shared, after=5, evaluated=1), shared=shared)
    assert (spec.rounds_before, spec.epochs) == (2, 1)
    assert "/model-000005-" in (spec.init_from or "")
    rest = run_here(spec, shared)
    assert [*_losses(rest)] == [-1, 0]
    assert _losses(rest)[-1] == _losses(whole)[1]
    assert [epoch.epoch for epoch in rest.epochs] == [3]
    assert rest.best is not None
    assert rest.best.epoch == 1


def _losses(result: downpour.Result) -> dict[int, float]:
    """Return the test losses of an experiment, by the rounds that it has evaluated."""
    lines = [json.loads(line) for line in (_folder(result) / RECORD_NAME).read_text().splitlines()]
    return {line["round"]: line["loss"] for line in lines if line["kind"] == "measured"}


def _folder(result: downpour.Result) -> Path:
    assert result.model_file is not None
    return result.model_file.parent


def test_an_evaluation_may_end_the_training_before_its_first_round(shared: Path) -> None:
    """A run was killed before the evaluation that would have ended it."""
    whole = run_here(SPEC.replace(keep_models=9), shared)
    name = stopped(whole, shared, after=4, evaluated=3)
    rest = resumed(name, shared)
    assert (rest.epochs, rest.reason) == ((), "no better loss since epoch 1")
    assert models_of(rest) == models_of(whole)


def test_an_experiment_that_has_lost_its_patience_needs_more_of_it(shared: Path) -> None:
    """One line says so; with more patience, it goes on."""
    whole = run_here(SPEC, shared)
    refusal = f"stop_after = 3: {whole.experiment} ended with 3 epochs without a better model"
    with pytest.raises(SpecError, match=refusal):
        resumed_spec(whole.experiment, shared, {"epochs": 9})
    more = resumed(whole, shared, epochs=9, stop_after=4)
    assert models_of(more) == models_of(run_here(SPEC.replace(epochs=9, stop_after=4), shared))


@pytest.mark.parametrize(
    "changes", [{"keep_best": "loss"}, {"test_limit": 50}, {"validation": 0.1}]
)
def test_what_cannot_be_compared_begins_anew_and_the_run_says_so(
    shared: Path, changes: dict[str, Any]
) -> None:
    """Values by another measure, or on other examples."""
    first = run_here(SPEC.replace(epochs=1), shared)
    rest = resumed(first, shared, epochs=3, **changes)
    assert f"no best model so far: that of {first.experiment}" in " ".join(rest.dataset)
    assert rest.best is not None
    assert rest.best.epoch > 1


def test_a_best_model_that_has_changed_since_the_submission_is_refused(shared: Path) -> None:
    """A spec that names it trains the same bytes again, or none."""
    first = run_here(SPEC.replace(epochs=2, keep_models=1), shared)
    again = downpour.Spec.make(resumed(first, shared, epochs=3).spec)
    assert again.best_checksum is not None
    (_folder(first) / "best.safetensors").unlink()
    with pytest.raises((SpecError, ExperimentFailed), match=r"best_checksum = .* has none now"):
        run_here(again, shared)
