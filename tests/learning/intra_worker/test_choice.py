"""`inside = "auto"`: what can be chosen, what is, and that it is measured on real processes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.core.resolve import resolve
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.store import SharedDirectory
from downpour.learning.auto import Candidate, Measured, candidates, chosen_of, settled
from tests.conftest import Allow
from tests.learning.intra_worker.conftest import ROOT

LOUD = "tests.learning.intra_worker.conftest:loud_network"
AUTO = {"inside": "auto", "dataset": "digits", "batch_size": 32}


def timed(name: Candidate, ratio: float) -> Measured:
    """A candidate that is so many times as fast."""
    return Measured(candidate=name, step_seconds=0.01, times_as_fast=ratio)


def test_auto_is_a_word_or_a_table() -> None:
    """Both are the same spec, and its TOML is read back as it is."""
    spec = Spec.make(AUTO)
    assert spec == Spec.make({**AUTO, "inside": {"how": "auto"}})
    assert Spec.from_toml(spec.to_toml()) == spec


def test_cores_are_what_processes_and_threads_take() -> None:
    """All are used, or none; the threads that a spec asks for are each process's."""
    assert candidates(Spec.make(AUTO), 1) == [Candidate()]
    assert candidates(Spec.make({**AUTO, "threads": 2}), 3) == [Candidate(threads=2)]
    found = candidates(Spec.make({**AUTO, "threads": 2}), 8)
    assert found[:2] == [Candidate(threads=2), Candidate(threads=8)]
    assert {(one.threads, one.processes) for one in found[2:]} == {(2, 4)}
    assert {one.how for one in found[2:]} == {"data", "hybrid", "pipeline"}


def test_one_process_is_left_for_a_clear_gain_alone() -> None:
    """A tenth is what noise may be; the fastest of several is taken, and what cannot be is not."""
    alone, threads, helpers = Candidate(), Candidate(threads=2), Candidate(processes=2)
    refused = Measured(candidate=Candidate(processes=2, how="hybrid"), refused="no dense layer")
    nearly = [timed(alone, 1.0), timed(threads, 1.09), refused]
    assert chosen_of(nearly).candidate == alone
    assert chosen_of([*nearly, timed(helpers, 1.5), timed(threads, 1.3)]).candidate == helpers


def test_workers_without_a_core_to_spare_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several on one machine share its cores; then nothing is started, and the caller is told."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    told: list[str] = []
    spec = settled(Spec.make(AUTO), 3, tmp_path, tell=told.append)
    assert (spec.threads, spec.inside.processes, spec.inside.how) == (1, 1, "data")
    assert told == ["inside: one process, because 3 workers share 4 cores"]


def test_only_a_run_on_this_machine_can_measure() -> None:
    """Elsewhere there may be other cores; the refusal says what to write instead."""
    with pytest.raises(SpecError, match=r"inside\.how = 'auto': only a run on this machine"):
        resolve(Spec.make(AUTO), 2)
    with pytest.raises(SpecError, match=r"set processes and how"):
        downpour.run(AUTO, workers=2, on="ray")
    with pytest.raises(SpecError, match=r"inside\.processes = 2: has no effect with how = 'auto'"):
        Spec.make({**AUTO, "inside": {"how": "auto", "processes": 2}})


@pytest.mark.slow
def test_a_training_that_is_refused_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is that of a submission, with its field."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    spec = Spec.make({**AUTO, "dataset": "npz", "data_path": str(tmp_path / "none.npz")})
    with pytest.raises(SpecError, match=r"^data_path = .*none\.npz"):
        settled(spec, 1, tmp_path)


@pytest.mark.slow
def test_a_run_measures_and_trains_with_what_it_has_chosen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowing: Allow,
) -> None:
    """Each candidate is measured or refused, and a network that prints disturbs nothing."""
    allowing(ROOT, "tests.learning.intra_worker.conftest")
    caplog.set_level(logging.INFO, "downpour")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    result = downpour.run(
        {**AUTO, "model": LOUD, "epochs": 1}, workers=1, shared=tmp_path, progress=False
    )
    *measured, chosen = [one.message for one in caplog.records if "inside: " in one.message]
    assert len(measured) == 5
    assert all("ms a step" in line or "not possible" in line for line in measured)
    folder = SharedDirectory(tmp_path).experiment_path(result.experiment)
    trained = ResolvedSpec.from_toml((folder / "spec.toml").read_text("utf-8"))
    assert trained.inside.how != "auto"
    name = Candidate(
        threads=trained.threads, processes=trained.inside.processes, how=trained.inside.how
    )
    assert chosen.startswith(f"inside: chose {name}")
