"""An exception anywhere in the driver's cycle ends the manager, and loses nothing.

What is raised is planted in the places that the cycle goes through, first with a driver alone, and
then with the processes as users start them.
"""

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
from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from tests.cluster.manager.conftest import SMALL, Start
from tests.cluster.manager.test_driver import JOINED, Sink
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
    "the lead": (Driver, "check_leader"),
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
def test_an_exception_anywhere_ends_the_driver_with_a_line(
    monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    """Who waits is told that the manager is stopping; nothing is done or taken in any more."""
    deaths: SimpleQueue[DownpourError] = SimpleQueue()
    sink = Sink()
    driver = Driver(Scheduler(), on_death=deaths.put)
    owner, name = PLACES[place]
    target: object = {Sink: sink, Driver: driver}.get(owner, driver.scheduler)
    driver.start(sink)
    with monkeypatch.context() as patch:
        patch.setattr(target, name, planted(error))
        forecasting = place == "forecasting"  # which comes before time passes
        answer = driver.post(on.Tick(at_seconds=0.0) if forecasting else SUBMITTED)
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


def test_an_exception_in_resumed_commands_ends_the_driver() -> None:
    """What an earlier manager left to be done is the first thing that can fail."""
    deaths: SimpleQueue[DownpourError] = SimpleQueue()
    driver = Driver(Scheduler(), on_death=deaths.put)
    driver.start(ManagerSink.__new__(ManagerSink), [out.Dismiss(worker="anna")])
    assert "AttributeError" in str(deaths.get(timeout=PATIENCE_SECONDS))
    driver.stop()


def test_events_of_a_failed_commit_are_refused() -> None:
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
        [sys.executable, "-m", "downpour", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.slow
def test_a_manager_that_meets_a_defect_ends_with_one_line_and_status_1(
    start: Start, tmp_path: Path, undisturbed: bytes
) -> None:
    """The next one goes on from what was journaled, with the same bytes."""
    first = start()
    experiment = first.submit(SMALL)
    first.close()
    shared = f"--shared={tmp_path / 'shared'}"
    status, complaints = downpour("manager", "--port=0", shared, plant=tmp_path)
    assert status == 1
    assert complaints[0].startswith("manager at ")
    # Where the machine is busy, the manager also says that it stood still.
    assert [line for line in complaints[1:] if "stood still" not in line] == [
        (
            "downpour: the manager stops because of a bug in Downpour: "
            "OSError: [Errno 116] Stale file handle (sitecustomize.py, line 16)"
        )
    ]
    second = start()
    second.join("one")
    assert second.result_of(experiment) == undisturbed


@pytest.mark.slow
def test_a_run_whose_manager_meets_a_defect_ends_with_one_line_and_status_1(tmp_path: Path) -> None:
    """Its workers end with it."""
    shared = f"--shared={tmp_path / 'shared'}"
    status, complaints = downpour("run", "--workers=1", "--epochs=1", shared, plant=tmp_path)
    assert status == 1
    assert complaints[-1].startswith(
        "downpour: the manager stops because of a bug in Downpour: OSError: "
    )
    assert not any("Traceback" in line for line in complaints)
