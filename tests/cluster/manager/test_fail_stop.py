"""An exception anywhere in the driver's cycle ends the manager, and loses nothing.

What is raised is planted in the places that the cycle goes through, first with a driver alone, then
with a manager that has workers, and then with the processes as users start them.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from downpour.base.errors import DownpourError, FailStop, IllegalTransition, Refused, SpecError
from downpour.cluster.manager.driver import Driver, ManagerSink
from downpour.cluster.manager.process import start_manager
from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler.events import Tick
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Lease
from downpour.network.rpc import ManagerClient
from tests.cluster.manager.conftest import SMALL, Cluster, diligent, options_of
from tests.cluster.manager.test_driver import JOINED, Sink
from tests.cluster.manager.test_takeover import final_model, gone, manager_of
from tests.specs import plain_spec

PATIENCE_SECONDS = 30
SUBMITTED = on.ExperimentSubmitted(at_seconds=0.0, experiment="any", spec=plain_spec(shards=2))
ERRORS: tuple[BaseException, ...] = (
    OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
    KeyError("x"),
    SpecError("shards", 0, "raised after something has changed"),
    IllegalTransition("task 3", "done", "assign", ()),
    SystemExit(3),
)
PLACES: dict[str, tuple[type, str]] = {
    "forecasting": (Sink, "forecasts"),
    "the core": (Scheduler, "handle"),
    "gathering": (Sink, "keep"),
    "keeping": (Sink, "commit"),
    "the lead": (Driver, "_check_leader"),
    "carrying out": (Sink, "carry_out"),
    "answering": (Driver, "_announce"),
}


def planted(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def defect(*_: object) -> None:
        raise error

    return defect


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_whatever_is_raised_wherever_ends_the_driver_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    """Who waits is told that the manager is stopping; nothing is done or taken in any more."""
    deaths: SimpleQueue[DownpourError] = SimpleQueue()
    sink = Sink()
    driver = Driver(Scheduler(), on_death=deaths.put)
    owner, name = PLACES[place]
    target: object = {Sink: sink, Driver: driver}.get(owner, driver._scheduler)
    driver.start(sink)
    with monkeypatch.context() as patch:
        patch.setattr(target, name, planted(error))
        forecasting = place == "forecasting"  # which comes before time passes
        answer = driver.post(Tick(at_seconds=0.0) if forecasting else SUBMITTED)
        death = deaths.get(timeout=PATIENCE_SECONDS)
    assert isinstance(death, FailStop)
    assert death.exit_status == 1
    assert type(error).__name__ in str(death)
    assert "(test_fail_stop.py, line " in str(death)
    if place != "answering":  # then everything was done
        with pytest.raises(Refused, match="is stopping"):
            answer.result(PATIENCE_SECONDS)
        assert sink.carried_out == []
    with pytest.raises(Refused, match="is stopping"):
        driver.post(JOINED).result(PATIENCE_SECONDS)
    with pytest.raises(Refused, match="is stopping"):
        driver.ask(lambda core: core)
    assert not driver.wait_for_change(10**9, 600)
    driver.stop()
    assert deaths.empty()


def test_what_cannot_be_begun_again_ends_the_driver_too() -> None:
    """What an earlier manager left to be done is the first thing that can fail."""
    deaths: SimpleQueue[DownpourError] = SimpleQueue()
    driver = Driver(Scheduler(), on_death=deaths.put)
    driver.start(ManagerSink.__new__(ManagerSink), [do.Dismiss(worker="anna")])
    assert "AttributeError" in str(deaths.get(timeout=PATIENCE_SECONDS))
    driver.stop()


def test_who_waits_together_with_the_event_that_broke_it_is_answered() -> None:
    """An event and a question that were taken in the same write are refused, not forgotten."""
    deaths: SimpleQueue[DownpourError] = SimpleQueue()
    sink = Sink()
    sink.commit = planted(KeyError("x"))  # type: ignore[method-assign]
    driver = Driver(Scheduler(), on_death=deaths.put)
    answers = [driver.post(JOINED), driver.post(SUBMITTED)]
    driver.start(sink)
    for answer in answers:
        with pytest.raises(Refused, match="is stopping") as refused:
            answer.result(PATIENCE_SECONDS)
        assert refused.value.busy, "whoever manages next may take it in"
    driver.stop()


def test_a_question_that_fails_harms_nothing() -> None:
    """Its error is the asker's; the next event is taken in as ever."""
    driver = Driver(Scheduler())
    driver.start(Sink())
    with pytest.raises(ZeroDivisionError):
        driver.ask(lambda _: 1 / 0)
    assert driver.post(JOINED).result(PATIENCE_SECONDS) == Output()
    driver.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model that comes of the small spec when nothing happens."""
    cluster = manager_of(tmp_path_factory.mktemp("undisturbed"))
    cluster.join("one")
    model = final_model(cluster, cluster.submit())
    gone(cluster)
    return model


def at_the_end_of_round_0(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method raise once, where the first round's model is among its arguments."""
    raised: list[bool] = []

    def defective(*words: Any) -> Any:
        seen = [one for word in words for one in (word if isinstance(word, list) else [word])]
        if not raised and any(isinstance(one, on.Aggregated | do.Evaluate) for one in seen):
            raised.append(True)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return method(*words)

    return defective


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Scheduler, "handle"),
        (ManagerSink, "keep"),
        pytest.param(ManagerSink, "carry_out", marks=pytest.mark.slow),
    ],
)
def test_the_next_manager_goes_on_with_the_same_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: bytes,
    owner: type,
    name: str,
) -> None:
    """One that met a defect in the middle of a run has lost nothing that it acknowledged."""
    monkeypatch.setattr(owner, name, at_the_end_of_round_0(getattr(owner, name)))
    deaths: SimpleQueue[DownpourError] = SimpleQueue()
    manager = start_manager(options_of(tmp_path), deaths.put)
    shared = SharedDirectory.open(tmp_path, create=False)
    first = Cluster(manager, ManagerClient(manager.address), shared)
    first.join("one", diligent)
    experiment = first.submit(SMALL)
    assert "Stale file handle" in str(deaths.get(timeout=PATIENCE_SECONDS))
    gone(first)
    Lease(shared).acquire(wait=False, while_waiting=lambda _: None)

    second = manager_of(tmp_path)
    second.join("two")
    assert final_model(second, experiment) == undisturbed
    gone(second)


PLANT = """
import importlib.abc, importlib.util, sys

class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "downpour.cluster.manager.driver":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def load_and_plant(module):
            load(module)
            keep = module.ManagerSink.keep
            def defective(self, core, event, output):
                if type(event).__name__ == "Prepared":
                    raise OSError(116, "Stale file handle")
                keep(self, core, event, output)
            module.ManagerSink.keep = defective
        spec.loader.exec_module = load_and_plant
        return spec

sys.meta_path.insert(0, Plant())
"""
"""Makes a manager's processes raise when a dataset has been prepared."""


def downpour(*words: str, plant: Path) -> tuple[int, list[str]]:
    """Run a command whose manager has the defect; returns its status and its complaints."""
    (plant / "sitecustomize.py").write_text(PLANT, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(plant), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "downpour.cli", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.slow
def test_a_manager_that_meets_a_defect_ends_with_one_line_and_status_1(
    tmp_path: Path, undisturbed: bytes
) -> None:
    """The next one goes on from what was journaled, with the same bytes."""
    folder = tmp_path / "shared"
    first = manager_of(folder)
    experiment = first.submit(SMALL)
    gone(first)
    status, complaints = downpour("manager", "--port=0", f"--shared={folder}", plant=tmp_path)
    assert status == 1
    assert complaints[0].startswith("manager at ")
    assert complaints[1:] == [
        (
            "downpour: the manager stops because of a bug in Downpour: "
            "OSError: [Errno 116] Stale file handle (sitecustomize.py, line 16)"
        )
    ]
    second = manager_of(folder)
    second.join("one")
    assert final_model(second, experiment) == undisturbed
    gone(second)


@pytest.mark.slow
def test_a_run_whose_manager_meets_a_defect_ends_with_one_line_and_status_1(
    tmp_path: Path,
) -> None:
    """Its workers end with it."""
    shared = f"--shared={tmp_path / 'shared'}"
    status, complaints = downpour("run", "--workers=1", "--epochs=1", shared, plant=tmp_path)
    assert status == 1
    assert complaints[-1].startswith(
        "downpour: the manager stops because of a bug in Downpour: OSError: "
    )
    assert not any("Traceback" in line for line in complaints)
