"""An experiment is trained once more from its record: the same bytes, or what differs first."""

import json
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest

import downpour
from downpour.base.errors import DownpourError, SpecError
from downpour.base.names import Devices
from downpour.core.modes import MODES
from downpour.experiments.replay import device_for, replay
from downpour.experiments.replay_history import Replay, past_of
from downpour.learning.numerics import numeric_class
from downpour.record.record import line_text, read_record
from downpour.record.record_lines import UpdatedLine
from tests.cli.conftest import Downpour
from tests.experiments.replay.conftest import Trained

Lines = list[dict[str, Any]]
NESTEROV = {"optimizer": "nesterov", "learning_rate": 0.7, "momentum": 0.6}


@pytest.fixture
def changed(trained: Trained, shared: Path) -> Callable[..., str]:
    """Copy an experiment, change its record and its folder, and return the copy's ID."""

    def make(
        edit: Callable[[Lines], object],
        touch: Callable[[Path], object] = str,
        mode: str = "downpour",
        **changes: Any,
    ) -> str:
        original = shared / "experiments" / trained(mode=mode, **changes)
        copy = original.with_name(f"copy-{secrets.token_hex(4)}")
        # It has ended, and may be exporting its record just now.
        texts = starmap(line_text, read_record(original / "record.jsonl"))
        lines = [json.loads(text) for text in texts]
        hidden = shutil.ignore_patterns(".tmp-*")
        shutil.copytree(original, copy, ignore=hidden, copy_function=_copy_if_there)
        edit(lines)
        (copy / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        touch(copy)
        return copy.name

    return make


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # the manager may be removing spent files
        shutil.copy2(source, target)


def nothing(_lines: Lines) -> None:
    """Leave a record as it is."""


def of_kind(lines: Lines, kind: str) -> Lines:
    """Return the lines of a kind."""
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize(
    "changes",
    [
        *({"mode": mode} for mode in sorted(MODES)),
        {"mode": "ssp", "optimizer": "adam", "learning_rate": 0.01, "optimizer_state": "keep"},
        {"mode": "fedbuff", "compression": "topk"},
        {"mode": "sync", "overlap": 1, "meet": 2, "optimizer_state": "keep"},
        {"mode": "sync", "meet": 2, "model_compression": "int3", "compression": "int3"},
        {"mode": "sync", "overlap": 1, "meet": 2, "model_compression": "int8"},
        {"mode": "downpour", "model_compression": "int3", "keep_best": "accuracy"},
        {"mode": "downpour", "outer": {"optimizer": "delayed-nesterov"}},
        {"mode": "ssp", "outer": {"optimizer": "heloco"}},
        {"mode": "downpour", "policy": "dylu"},
        {"mode": "sync", "meet": 2, "outer": NESTEROV, "momentum": 0.9, "optimizer_state": "keep"},
        {"mode": "sync", "aggregate": "first", "keep_best": "accuracy"},
    ],
    ids=lambda changes: changes["mode"],
)
def test_the_same_bytes_come_again(
    trained: Trained, shared: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Every update, version and the model, though the experiment's own updates are long removed."""
    experiment = trained(**changes)
    again = replay(experiment, shared=shared, to=tmp_path / "again")
    assert again.same, again
    assert again.model_file is not None
    model = shared / "experiments" / experiment / "model.safetensors"
    assert again.model_file.name == model.name
    assert again.model_file.read_bytes() == model.read_bytes()
    record = read_record(shared / "experiments" / experiment / "record.jsonl")
    updates = sum(isinstance(line, UpdatedLine) for _, line in record)
    assert again.compared == 1 + updates + again.version + 1


def test_the_record_alone_is_enough(changed: Callable[..., str], shared: Path) -> None:
    """No model version and no journal is needed, nor the final model."""

    def strip(folder: Path) -> None:
        for path in folder.iterdir():
            if path.name not in {"record.jsonl", "spec.toml"}:
                path.unlink()

    assert replay(changed(nothing, strip), shared=shared).same


def test_the_log_alone_is_enough(changed: Callable[..., str], shared: Path) -> None:
    """Where the record is not exported, as after a crash at the end, it is projected."""
    assert replay(changed(nothing, without("record.jsonl", "*model*")), shared=shared).same


def test_a_record_without_an_end_is_said(
    changed: Callable[..., str], shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its run was killed, or someone cut the record; nothing tells which."""
    cut = changed(lambda lines: lines.pop(), lambda folder: (folder / "run.lock").touch())
    assert replay(cut, shared=shared, until=0).same
    assert "its record has no end" in caplog.text


def test_it_may_end_at_a_version(trained: Trained, shared: Path, tmp_path: Path) -> None:
    """The model is what the version was, under its name; version 0 is the initial model."""
    experiment = trained(mode="downpour")
    again = replay(experiment, shared=shared, until=2, to=tmp_path / "two")
    assert again.same
    assert again.version == 2
    assert again.model_file is not None
    assert again.model_file.name.startswith("model-000002-")
    kept = {path.name for path in (tmp_path / "two").iterdir()}
    assert kept == {again.model_file.name, "spec.toml"}
    first = replay(experiment, shared=shared, until=0)
    assert (first.version, first.compared, first.model_file) == (0, 1, None)


def test_progress_goes_up_to_all_tasks(trained: Trained, shared: Path) -> None:
    """Step by step."""
    seen: list[tuple[float, int]] = []
    downpour.replay(
        trained(mode="downpour"), shared=shared, on_progress=lambda *at: seen.append(at)
    )
    assert seen == sorted(seen)
    assert seen[-1] == (6.0, 6)


def test_the_update_that_differs_is_named(
    changed: Callable[..., str], shared: Path, tmp_path: Path
) -> None:
    """With its task, its worker and both numeric classes; what follows is not made."""

    def forge(lines: Lines) -> None:
        of_kind(lines, "updated")[3]["checksum"] = "0" * 32
        of_kind(lines, "aggregated")[5]["checksum"] = "1" * 32

    experiment = changed(forge)
    again = replay(experiment, shared=shared)
    assert not again.same
    found = again.difference
    assert found is not None
    assert found.task is not None
    assert found.then == "0" * 32
    assert found.version == again.version + 1
    line = str(again)
    round_and_shard = f"round {found.task.round + 1} shard {found.task.shard}"
    assert f"version {found.version} differs: the update of {round_and_shard}, which " in line
    assert (
        f"{found.task.worker} trained, had checksum {'0' * 32} in numeric class 'torch 2 " in line
    )
    on = replay(experiment, shared=shared, to=tmp_path / "all the same")
    assert on.difference == found
    assert on.model_file is not None
    assert on.version == 6


def test_a_version_that_differs_is_named(changed: Callable[..., str], shared: Path) -> None:
    """Its updates agree, so they were put together otherwise.

    The record says in which order an earlier release added. Only if bytes differ is it why.
    """

    def reorder(lines: Lines) -> None:
        for line in of_kind(lines, "aggregated"):
            assert line["summed"] == "tree"
            line["summed"] = "chain"

    def forge(lines: Lines) -> None:
        reorder(lines)
        of_kind(lines, "aggregated")[1]["checksum"] = "0" * 32

    assert replay(changed(reorder, mode="sync"), shared=shared).same
    again = replay(changed(forge, mode="sync"), shared=shared)
    said = f"version 2 differs: the model of its updates had checksum {'0' * 32}, and now has "
    assert str(again).startswith(said)
    why = "; an earlier release made it, and added the updates in another order"
    assert str(again).endswith(why)


def test_other_bases_give_other_bytes(changed: Callable[..., str], shared: Path) -> None:
    """A replay would notice a push that was applied to another version than the record says."""

    def forge(lines: Lines) -> None:
        for line in of_kind(lines, "aggregated"):
            line["staleness"] = [0] * len(line["staleness"])

    assert replay(changed(forge), shared=shared).difference is not None


def test_another_numeric_class_is_said(
    trained: Trained, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything is trained: the bytes may differ, and they need not."""
    assert replay(trained(mode="downpour"), shared=shared).same
    [said] = [one.getMessage() for one in caplog.records if "numeric class" in one.getMessage()]
    assert "so its bytes may differ: torch 2 on cpu (x86_64); here it is torch " in said


@pytest.mark.parametrize(
    ("device", "here", "there"),
    [
        ("cpu", Devices({"cuda": 1}), "cpu"),
        ("cuda", Devices({"cuda": 1}), "cuda"),
        ("auto", Devices(), "cpu"),
    ],
)
def test_a_replay_trains_where_the_experiment_did(
    trained: Trained, shared: Path, device: str, here: Devices, there: str
) -> None:
    """If each worker took its best device, the record tells which it was."""
    past = past_of(trained(mode="downpour")[:-1], shared)
    asked = replace(past, spec=past.spec.replace(device=device))
    assert device_for(asked, here) == there


def test_a_device_that_is_not_here_cannot_be_replayed(trained: Trained, shared: Path) -> None:
    """The line names what there is."""
    past = past_of(trained(mode="downpour"), shared)
    asked = replace(past, spec=past.spec.replace(device="cuda:1"))
    with pytest.raises(SpecError, match=r"was trained on cuda:1, .* only cpu, cuda$"):
        device_for(asked, Devices({"cuda": 1}))


def without(*patterns: str) -> Callable[[Path], object]:
    """Return what removes files from a folder."""

    def remove(folder: Path) -> None:
        for path in [path for each in patterns for path in folder.glob(each)]:
            path.unlink()

    return remove


def rewritten(old: str, new: str) -> Callable[[Path], object]:
    """Return what changes a word of a folder's spec."""

    def rewrite(folder: Path) -> None:
        spec = folder / "spec.toml"
        spec.write_text(spec.read_text().replace(old, new))

    return rewrite


def without_kind(kind: str, place: int = 0) -> Callable[[Lines], object]:
    """Return what removes a line of a kind from a record."""
    return lambda lines: lines.remove(of_kind(lines, kind)[place])


def once(lines: Lines) -> None:
    """Let the experiment not be repeatable."""
    of_kind(lines, "submitted")[0]["spec"]["repeatable"] = False


def other_data(lines: Lines) -> None:
    """Let the experiment have begun with a dataset that is gone, and can be made no more."""
    of_kind(lines, "prepared")[0]["dataset"] = "digits-0-gone"


@pytest.mark.parametrize(
    ("edit", "touch", "reason"),
    [
        (without_kind("finished"), str, "is still running; replay it after its end"),
        (nothing, without("spec.toml"), "cannot be replayed: its spec.toml is missing"),
        (nothing, rewritten("seed = 0", "seed = 1"), "its spec.toml was changed: seed was 0"),
        (nothing, rewritten("seed", "sneed"), "its spec.toml cannot be used: sneed = 0"),
        (nothing, without("record.jsonl", "journal-*"), "record.jsonl: no such file"),
        (once, rewritten("repeatable = true", "repeatable = false"), "has repeatable = false"),
        (without_kind("prepared"), str, "has no model: the experiment never began to train"),
        (without_kind("submitted"), str, "record: does not begin with a submission"),
        (other_data, str, "has changed since the experiment began with digits-0-gone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_replayed_is_told(
    command: Downpour,
    changed: Callable[..., str],
    shared: Path,
    edit: Callable[[Lines], object],
    touch: Callable[[Path], object],
    reason: str,
) -> None:
    """In one line, with status 2, before anything is trained."""
    outcome = command("replay", changed(edit, touch), "--shared", shared)
    assert (outcome.status, outcome.out) == (2, ""), outcome
    [line] = outcome.err.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("ID", "--until", "7"), "until = 7: ID has the versions 0 to 6"),
        (("ID", "--until", "-1"), "until = -1: ID has the versions 0 to 6"),
        (("ID", "--to", "SHARED"), "SHARED': is not empty, and Downpour never overwrites files"),
    ],
)
def test_what_cannot_be_meant_is_told(
    command: Downpour, trained: Trained, shared: Path, words: tuple[str, ...], reason: str
) -> None:
    """In one line, with status 2."""
    experiment = trained(mode="downpour")

    def real(text: str) -> str:
        return text.replace("ID", experiment).replace("SHARED", str(shared))

    given = ("--shared", str(shared), *(real(w) if w != "--until" else w for w in words))
    outcome = command("replay", *given)
    assert (outcome.status, outcome.out) == (2, ""), outcome
    assert real(reason) in outcome.err
    assert outcome.err.count("\n") == 1


def test_the_command_says_what_came_of_it(
    command: Downpour, trained: Trained, changed: Callable[..., str], shared: Path, tmp_path: Path
) -> None:
    """The checksum and where the model is; status 1 where something differs; JSON for programs."""
    experiment = trained(mode="downpour")
    words = "--shared", shared
    outcome = command("replay", experiment, *words, "--to", tmp_path / "again")
    assert outcome.status == 0, outcome
    said, model = outcome.out.splitlines()
    assert said.startswith(f"{experiment}: version 6 has checksum ")
    assert said.endswith("; 14 checksums agree")
    assert model == f"model {tmp_path / 'again' / 'model.safetensors'}"
    told = json.loads(command("replay", experiment, *words, "--until", 1, "--json").out)
    assert (told["version"], told["same"], told["difference"]) == (1, True, None)

    def forge(lines: Lines) -> None:
        of_kind(lines, "prepared")[0]["checksum"] = "0" * 32

    outcome = command("replay", changed(forge), *words)
    assert outcome.status == 1, outcome
    assert outcome.out.startswith("version 0 differs: the initial model had checksum 000")


def test_a_task_that_fails_here_is_no_mistake_of_the_user(
    changed: Callable[..., str], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error says what went wrong, as in training."""

    def fail(*_: object) -> Replay:
        raise DownpourError("the loss is NaN")

    monkeypatch.setattr("downpour.cluster.worker.task_runner.TaskRunner.run", fail)
    with pytest.raises(DownpourError, match="the loss is NaN"):
        replay(changed(nothing), shared=shared)


def here(lines: Lines) -> None:
    """Let the workers be of this machine's numeric class, as their updates are."""
    for line in of_kind(lines, "worker-joined"):
        line["numeric_class"] = str(numeric_class("cpu"))


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        ({"mode": "sync", "keep_models": 2}, 6),
        ({"mode": "sync", "optimizer_state": "keep", "keep_models": 2}, 3),
        ({"mode": "sync", "model_compression": "int3", "compression": "int3", "keep_models": 2}, 3),
        ({"mode": "easgd", "keep_models": 9}, 3),
        ({"mode": "downpour", "keep_models": 9}, 6),
    ],
)
def test_an_audit_trains_the_drawn_tasks_alone(
    command: Downpour,
    changed: Callable[..., str],
    shared: Path,
    changes: dict[str, Any],
    alone: int,
) -> None:
    """From kept versions and version 0, unless a shard goes on from its own files."""
    experiment = changed(here, **changes)
    words = "audit", experiment, "--shared", shared, "--share", 1, "--seed", 7
    outcome = command(*words)
    assert outcome.status == 0, outcome
    said = outcome.out.splitlines()
    assert f"{alone} of 6 tasks can be trained alone here; downpour replay" in outcome.out
    assert f"drawn by: downpour audit {experiment} --share 1.0 --seed 7" in said
    assert said[-1].startswith(f"all {alone} audited tasks of ")
    told = json.loads(command(*words, "--json").out)
    assert len(told["rows"]) == alone
    assert all(row["recorded"] == row["recomputed"] and row["agrees"] for row in told["rows"])


def test_an_audit_names_the_worker_that_was_wrong(
    command: Downpour, changed: Callable[..., str], shared: Path
) -> None:
    """Of a running experiment as well; tasks after the wrong update are audited all the same."""
    wrong: Lines = []

    def forge(lines: Lines) -> None:
        here(lines)
        lines.remove(of_kind(lines, "finished")[0])
        wrong.extend(of_kind(lines, "updated")[1:2])
        wrong[0]["checksum"] = "0" * 32

    experiment = changed(forge, mode="sync", keep_models=2)
    outcome = command("audit", experiment, "--shared", shared, "--share", 1)
    assert outcome.status == 1, outcome
    said = outcome.out.splitlines()
    assert said[-1] == f"other bytes than on record: {wrong[0]['worker']}"
    [row] = [line for line in said if line.rstrip().endswith("False")]
    assert row.split()[:3] == ["1", str(wrong[0]["shard"]), wrong[0]["worker"]]


@pytest.mark.parametrize(
    ("edit", "words", "reason"),
    [
        (here, ("--share", "0"), "share = 0.0: must be above 0 and at most 1"),
        (here, ("--share", "nan"), "share = nan: must be above 0 and at most 1"),
        (nothing, (), "this machine's, can be trained alone; the classes on record: torch 2 on"),
    ],
)
def test_what_cannot_be_audited_is_told(
    command: Downpour,
    changed: Callable[..., str],
    shared: Path,
    edit: Callable[[Lines], object],
    words: tuple[str, ...],
    reason: str,
) -> None:
    """In one line, with status 2."""
    outcome = command("audit", changed(edit), "--shared", shared, *words)
    assert (outcome.status, outcome.out) == (2, ""), outcome
    assert reason in outcome.err
