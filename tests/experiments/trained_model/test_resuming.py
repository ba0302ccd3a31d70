"""`run --resume`: model and decisions are the same as if there had been no stop."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import downpour
from downpour.base.errors import ExperimentFailed, SpecError
from downpour.cluster.manager import work
from downpour.cluster.manager.workspace import Workspace
from downpour.core.modes import MODES
from downpour.core.scheduler.outputs import Aggregate
from downpour.core.spec import REQUIRED, toml_fields
from downpour.experiments.locating import resumed_spec, spec_in
from downpour.files.store import RECORD_NAME, SPEC_NAME
from tests.cli.conftest import Downpour, Served, own_signals, served
from tests.cli.conftest import downpour as command
from tests.experiments.trained_model.conftest import SPEC, run_here

__all__ = ["command", "own_signals", "served"]

pytestmark = pytest.mark.slow


def bytes_of(result: downpour.Result | dict[str, Any]) -> bytes:
    """Return the final model of a result."""
    file = result["model_file"] if isinstance(result, dict) else result.model_file
    assert file is not None
    return Path(file).read_bytes()


def test_an_experiment_goes_on_with_the_same_bytes(
    command: Downpour, result: downpour.Result, shared: Path
) -> None:
    """Two rounds, and two more by other workers, are four; once more it goes on to five."""
    whole = run_here(SPEC.replace(epochs=4), shared)
    words = ("--workers", 2, "--shared", shared, "--json")
    outcome = command("run", "--resume", result.experiment, "--epochs", 4, *words)
    assert outcome.status == 0, outcome
    rest = json.loads(outcome.out)
    assert bytes_of(rest) == bytes_of(whole)
    assert len(rest["rounds"]) == 2
    again = resumed_spec(rest["experiment"], shared, {"epochs": 5})
    assert (again.rounds_before, again.epochs) == (4, 1)


@pytest.mark.parametrize("name", [name for name in REQUIRED if name != "shards"])
def test_an_experiment_of_an_older_build_is_refused(
    result: downpour.Result, shared: Path, tmp_path: Path, name: str
) -> None:
    """Its spec lacks fields, which would mean something else today."""
    folder = tmp_path / "experiments" / result.experiment
    shutil.copytree(shared / "experiments" / result.experiment, folder)
    fields = toml_fields((folder / SPEC_NAME).read_text())
    del fields[name]
    (folder / SPEC_NAME).write_text(tomli_w.dumps(fields))
    with pytest.raises(SpecError, match=f"{name} = None: is missing: an older build of Downpour"):
        resumed_spec(result.experiment, tmp_path, {"epochs": 4})


def test_other_fields_may_change(result: downpour.Result, shared: Path) -> None:
    """They are options of the command, as for any run; the beginning of an ID is enough."""
    spec = resumed_spec(result.experiment[:-1], shared, {"epochs": 3, "learning_rate": 0.01})
    assert (spec.epochs, spec.rounds_before, spec.learning_rate) == (1, 2, 0.01)
    assert spec.init_from is not None
    assert spec.init_from.startswith(f"{result.experiment}/model-000002-")


@pytest.mark.parametrize(
    ("experiment", "changes", "reason"),
    [
        ("none-1", {}, "resume = 'none-1': no such experiment in "),
        ("../x", {}, "resume = '../x': no such experiment in "),
        ("ID", {}, "epochs = 2: ID has trained 2 epochs; set a larger total"),
        ("ID", {"epochs": 0}, "epochs = 0: ID has trained 2 epochs"),
        ("ID", {"epochs": "x"}, "epochs = 'x': must be a whole number"),
        ("ID", {"epochs": 3, "seed": -1}, "seed = -1"),
    ],
)
def test_what_cannot_go_on_is_told(
    result: downpour.Result, shared: Path, experiment: str, changes: dict[str, Any], reason: str
) -> None:
    """In one line."""
    name = experiment.replace("ID", result.experiment)
    with pytest.raises(SpecError) as refused:
        resumed_spec(name, shared, changes)
    assert str(refused.value).startswith(reason.replace("ID", result.experiment))


def test_an_experiment_without_a_model_is_refused(shared: Path) -> None:
    """It never began to train."""
    (shared / "experiments" / "empty").mkdir()
    with pytest.raises(SpecError, match="has no model, because it never began to train"):
        resumed_spec("empty", shared, {})


def test_other_examples_are_refused_unless_they_are_asked_for(
    result: downpour.Result, shared: Path
) -> None:
    """The spec knows the data of the old one; a user who changes `train_limit` wants others."""
    [*_, key] = [path.name for path in (shared / "datasets").glob("digits-*")]
    assert resumed_spec(result.experiment, shared, {"epochs": 3}).data_key == key
    assert resumed_spec(result.experiment, shared, {"epochs": 3, "train_limit": 9}).data_key is None
    with pytest.raises(ExperimentFailed, match="dataset = 'digits': its examples have ch"):
        run_here(SPEC.replace(data_key="another"), shared)


def test_a_manager_goes_on_with_it_too(
    command: Downpour, served: Served, result: downpour.Result, shared: Path
) -> None:
    """`submit` finds the experiment in the shared directory, as `run` does."""
    seen = "--manager", served.address, "--shared", served.shared
    place = served.shared / "experiments" / result.experiment
    shutil.copytree(shared / "experiments" / result.experiment, place)
    outcome = command("submit", "--resume", result.experiment, "--epochs", 3, *seen)
    assert outcome.status == 0, outcome
    experiment = outcome.out.split()[0]
    assert command("cancel", experiment, *seen).status == 0
    spec = spec_in(served.shared / "experiments" / experiment, experiment)
    assert (spec.rounds_before, spec.epochs) == (2, 1)
    assert (spec.init_from or "").startswith(f"{result.experiment}/model-000002-")


def test_one_that_stopped_between_two_epochs_goes_on_with_the_same_bytes(shared: Path) -> None:
    """After four of its six meetings: the rest of the epoch is trained, and no example twice."""
    spec = SPEC.replace(meet=3, schedule="cosine", keep_models=9)
    whole = run_here(spec, shared)
    assert len(whole.rounds) == 6
    stopped = shared / "experiments" / "between"
    shutil.copytree(shared / "experiments" / whole.experiment, stopped)
    for name in ("model.safetensors", "*-000005-*", "*-000006-*"):
        for file in stopped.glob(name):
            file.unlink()
    rest = downpour.resumed("between", shared=shared)
    assert (rest.rounds_before, rest.epochs, rest.rounds) == (4, 1, 2)
    ended = run_here(rest, shared)
    assert bytes_of(ended) == bytes_of(whole)
    with pytest.raises(
        SpecError, match="meet = 2: must be 3, because between trained with 3 rounds per epoch"
    ):
        downpour.resumed("between", shared=shared, meet=2)
    again = downpour.resumed(whole.experiment, shared=shared, meet=2, epochs=3)
    assert (again.rounds_before, again.rounds) == (4, 2)


@pytest.mark.parametrize("codec", ["none", "int3"])
def test_the_outer_optimizer_goes_on_with_its_state(shared: Path, codec: str) -> None:
    """It lies beside the last model version; without it, momentum would begin anew."""
    outer = downpour.Outer(optimizer="nesterov", momentum=0.6)
    spec = SPEC.replace(meet=2, outer=outer, model_compression=codec)
    whole = downpour.run(spec, workers=2, shared=shared, progress=False, on="inline")
    first = run_here(spec.replace(epochs=1), shared)
    rest = downpour.resumed(first.experiment, epochs=2, shared=shared)
    ended = run_here(rest, shared)
    assert bytes_of(ended) == bytes_of(whole)
    [state] = (shared / "experiments" / first.experiment).glob("outer-*")
    state.unlink()
    anew = run_here(rest, shared)
    assert bytes_of(anew) != bytes_of(whole)
    said = " ".join(anew.dataset), " ".join(ended.dataset)
    assert ["no outer state so far" in one for one in said] == [True, False]


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_killed_run_goes_on_with_the_outer_state_that_no_file_has(
    shared: Path, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    """It follows from the journal and from updates that stay until the next state is published."""
    outer = downpour.Outer(optimizer="nesterov", momentum=0.6)
    codecs = {"model_compression": "int3", "compression": "int3"}
    spec = SPEC.replace(meet=2, outer=outer, overlap=overlap, **codecs)
    killed, aggregate = shared / "experiments" / f"killed-{overlap}", work.aggregate

    def copy_first(space: Workspace, command: Aggregate) -> work.NewVersion:
        if command.round == 3:
            shutil.copytree(space.folder, killed)
        return aggregate(space, command)

    monkeypatch.setattr(work, "aggregate", copy_first)
    whole = run_here(spec, shared)
    assert [path.name[:12] for path in killed.glob("outer-*")] == ["outer-000000"]
    rest = downpour.resumed(killed.name, shared=shared)
    assert (rest.rounds_before, rest.rounds) == (3, 1)
    assert bytes_of(run_here(rest, shared)) == bytes_of(whole)


def states_of(result: downpour.Result, shared: Path) -> list[Path]:
    """Return the files of the shards' optimizer states that an experiment has left."""
    return sorted((shared / "experiments" / result.experiment).glob("optimizer-*"))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"optimizer": "adam", "learning_rate": 0.003, "optimizer_state": "keep"},
        {"compression": "topk", "optimizer_state": "reset", "outer": "none"},
        {"mode": "k-sync", "mode_options": {"k": 2}, "optimizer_state": "keep"},
        {"overlap": 1},
        {"overlap": 1, "compression": "topk", "keep_models": 1, "outer": "nesterov"},
        {"model_compression": "int3", "compression": "int3", "optimizer_state": "keep"},
        {"overlap": 1, "model_compression": "terngrad", "optimizer_state": "keep"},
    ],
    ids=str,
)
def test_what_the_shards_keep_goes_on_with_them(shared: Path, fields: dict[str, Any]) -> None:
    """Momentum, Adam's moments, what a codec has not sent, and a shard's own way."""
    spec = downpour.Spec(shards=2, epochs=3, meet=2, train_limit=400, test_limit=100, **fields)
    whole, first = run_here(spec, shared), run_here(spec.replace(epochs=1), shared)
    assert len(states_of(first, shared)) == 2
    second = run_here(downpour.resumed(first.experiment, epochs=2, shared=shared), shared)
    third = run_here(downpour.resumed(second.experiment, epochs=3, shared=shared), shared)
    assert bytes_of(third) == bytes_of(whole)
    assert len(states_of(third, shared)) == 2


@pytest.mark.parametrize("mode", [name for name in MODES if not downpour.Spec(mode=name).in_step])
def test_shards_that_are_rounds_apart_go_on_after_the_last_round(shared: Path, mode: str) -> None:
    """Its versions are not its rounds. The bytes follow from the order in which updates come."""
    spec = downpour.Spec(shards=2, epochs=2, train_limit=400, test_limit=100, mode=mode)
    first = run_here(spec.replace(optimizer_state="keep"), shared)
    rest = downpour.resumed(first.experiment, epochs=3, shared=shared)
    assert (rest.rounds_before, rest.epochs) == (2, 1)
    ended = run_here(rest, shared)
    assert [epoch.epoch for epoch in ended.epochs] == [3]
    assert "start without optimizer states" not in " ".join(ended.dataset)
    (shared / "experiments" / first.experiment / RECORD_NAME).unlink()
    with pytest.raises(SpecError, match=f"rounds of mode '{mode}' are done: "):
        downpour.resumed(first.experiment, epochs=3, shared=shared)


def test_states_that_have_changed_since_they_were_submitted_are_refused(shared: Path) -> None:
    """A spec that names them trains the same bytes again, or none."""
    spec = downpour.Spec(shards=2, epochs=1, train_limit=400, test_limit=100)
    first = run_here(spec, shared)
    rest = run_here(downpour.resumed(first.experiment, epochs=2, shared=shared), shared)
    again = downpour.Spec.make(rest.spec)
    assert again.states_checksum is not None
    assert bytes_of(run_here(again, shared)) == bytes_of(rest)
    states_of(first, shared)[1].unlink()
    with pytest.raises((SpecError, ExperimentFailed), match=r"states_checksum = .* has another: "):
        run_here(again, shared)


def test_where_states_do_not_fit_the_optimizers_begin_anew_and_the_run_says_so(
    shared: Path,
) -> None:
    """Of another optimizer."""
    spec = downpour.Spec(shards=2, epochs=1, train_limit=400, test_limit=100)
    first = run_here(spec, shared)
    rest = downpour.resumed(first.experiment, epochs=2, shared=shared, optimizer="adamw")
    anew = run_here(rest.replace(optimizer_state="keep", learning_rate=0.001), shared)
    assert "shards start without optimizer states" in " ".join(anew.dataset)


@pytest.mark.usefixtures("allowed")
def test_a_task_that_was_stopped_goes_on_with_the_same_bytes(
    own: downpour.Result, shared: Path
) -> None:
    """The schedule goes on where it was, too: two rounds of four were done when it was stopped."""
    stopped = shared / "experiments" / "stopped"
    shutil.copytree(shared / "experiments" / own.experiment, stopped)
    for name in ("model.safetensors", "model-000003-*", "model-000004-*"):
        [file] = stopped.glob(name)
        file.unlink()
    spec = downpour.resumed("stopped", shared=shared)
    assert (spec.rounds_before, spec.epochs) == (2, 2)
    rest = run_here(spec, shared)
    assert bytes_of(rest) == bytes_of(own)


BEST_SPEC = downpour.Spec(
    meet=1,
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
    folder = shared / "experiments" / f"stopped-{after}-{evaluated}-{result.experiment}"
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
        ({"outer": "nesterov", "meet": 2, "keep_models": 1}, (1, 2)),
        ({"outer": "nesterov", "meet": 2, "model_compression": "int3"}, (1, 2)),
    ],
    ids=str,
)
def test_the_best_model_and_the_patience_go_on(
    shared: Path, fields: dict[str, Any], stops: tuple[int, ...]
) -> None:
    """It ends with the same epochs, the same final model and the same best one."""
    spec = BEST_SPEC.replace(**fields)
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
    spec = BEST_SPEC.replace(keep_best="loss", stop_after=2, keep_models=9)
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
    whole = run_here(BEST_SPEC.replace(**fields), shared)
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


@pytest.mark.parametrize("outer", ["none", "nesterov"])
def test_an_evaluation_may_end_the_training_before_its_first_round(
    shared: Path, outer: str
) -> None:
    """A run was killed before the evaluation that would have ended it."""
    whole = run_here(BEST_SPEC.replace(keep_models=9, outer=outer), shared)
    name = stopped(whole, shared, after=4, evaluated=3)
    rest = resumed(name, shared)
    assert (rest.epochs, rest.reason) == ((), "no better loss since epoch 1")
    assert models_of(rest) == models_of(whole)


def test_an_experiment_that_has_lost_its_patience_needs_more_of_it(shared: Path) -> None:
    """One line says so; with more patience, it goes on."""
    whole = run_here(BEST_SPEC, shared)
    refusal = f"stop_after = 3: {whole.experiment} ended with 3 epochs without a better model"
    with pytest.raises(SpecError, match=refusal):
        resumed_spec(whole.experiment, shared, {"epochs": 9})
    more = resumed(whole, shared, epochs=9, stop_after=4)
    assert models_of(more) == models_of(run_here(BEST_SPEC.replace(epochs=9, stop_after=4), shared))


@pytest.mark.parametrize(
    "changes", [{"keep_best": "loss"}, {"test_limit": 50}, {"validation": 0.1}]
)
def test_what_cannot_be_compared_begins_anew_and_the_run_says_so(
    shared: Path, changes: dict[str, Any]
) -> None:
    """Values by another measure, or on other examples."""
    first = run_here(BEST_SPEC.replace(epochs=1), shared)
    rest = resumed(first, shared, epochs=3, **changes)
    assert f"no best model so far: that of {first.experiment}" in " ".join(rest.dataset)
    assert rest.best is not None
    assert rest.best.epoch > 1


def test_a_best_model_that_has_changed_since_the_submission_is_refused(shared: Path) -> None:
    """A spec that names it trains the same bytes again, or none."""
    first = run_here(BEST_SPEC.replace(epochs=2, keep_models=1), shared)
    again = downpour.Spec.make(resumed(first, shared, epochs=3).spec)
    assert again.best_checksum is not None
    (_folder(first) / "best.safetensors").unlink()
    with pytest.raises((SpecError, ExperimentFailed), match=r"best_checksum = .* has none now"):
        run_here(again, shared)
