"""What a user's code computes must not depend on the process; another process notices it."""

import datetime as dt
import json
import os
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from downpour.learning.allowlist import VARIABLE
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.repeating import another_clock, decided, difference, repeated
from tests.specs import plain_spec

HERE = Path(__file__).parent
NOTICED = {
    "Hashes": "its loss differs after one step",
    "Ordered": "differ as built",
    "Unseeded": "its loss differs after one step",
    "Numbered": "its loss differs after one step",
    "Configured": "its loss differs after one step",
    "Timed": "under another clock (process_tasks.py:",
    "Dated": "under another clock (process_tasks.py:",
    "Cached": "its loss differs after one step",
    "Counting": "once late",
}


def loaded(name: str, folder: Path) -> LoadedTask:
    """Return a task of `process_tasks`, ready to train."""
    spec = plain_spec(task=f"process_tasks:{name}", shards=1, batch_size=4)
    return load(spec, open_data(spec, folder, prepare_data(spec, folder)))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process has found of each task, with other hashes and another variable."""
    folder = tmp_path_factory.mktemp("elsewhere")
    words = [sys.executable, __file__, str(folder), "Plain", *NOTICED]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2]), *sys.path]),
        "LAB_SCALE": "3",
        VARIABLE: "process_tasks",
    }
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv(VARIABLE, "process_tasks")


@pytest.mark.parametrize("name", NOTICED)
def test_another_process_notices_what_depends_on_the_process(
    elsewhere: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """And says what differs, when, and what was different there if only that tells."""
    known = decided(loaded(name, tmp_path))
    assert known
    assert NOTICED[name] in difference(known, elsewhere[name])


def test_draws_counters_and_clocks_that_decide_nothing_are_accepted(
    elsewhere: dict[str, Any], tmp_path: Path
) -> None:
    """A task may count its steps and look at the clock, as for its own log."""
    known = decided(loaded("Plain", tmp_path))
    circumstances = [where for where, _ in elsewhere["Plain"]]
    assert ["clock" in where for where in circumstances] == [False, True, False]
    assert circumstances[-1] == "once steps has been counted further"
    assert known
    assert difference(known, elsewhere["Plain"]) == ""


USERS = """
import datetime as dt, time
from datetime import datetime

def look():
    global kept
    kept = time.time
    return time.time(), dt.datetime.now(), datetime.now()
"""


def test_only_a_users_files_meet_another_time(tmp_path: Path) -> None:
    """A library that is imported meanwhile keeps real classes; so does later code of the user's."""
    (tmp_path / "users.py").write_text(USERS)
    found = spec_from_file_location("users", tmp_path / "users.py")
    assert found is not None
    assert found.loader is not None
    users = module_from_spec(found)
    found.loader.exec_module(users)
    real = dt.datetime
    with another_clock([users]) as asked:
        seconds, *dates = users.look()
        assert sys.modules["datetime"].datetime is real
        assert abs(seconds - time.time()) > 1e6
        assert all(abs(one - real.now()) > dt.timedelta(days=100) for one in dates)
        assert len(asked) == 3
    assert abs(users.kept() - time.time()) < 1000
    assert users.datetime is users.dt.datetime is real


def test_repeating_leaves_clocks_and_counters_as_they_were(tmp_path: Path) -> None:
    """The worker trains with them afterwards."""
    before = time.time, dt.datetime, dt.date
    task = loaded("Plain", tmp_path)
    repeated(task)
    assert (time.time, dt.datetime, dt.date) == before
    counted: Any = type(task.task)
    assert counted.steps < 100


if __name__ == "__main__":
    root = Path(sys.argv[1])
    sys.stdout.write(json.dumps({name: repeated(loaded(name, root)) for name in sys.argv[2:]}))
