"""`downpour du` measures a shared directory; `downpour rm` removes what no experiment needs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.core.scheduler import outputs as out
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.shared_directory import RUN_LOCK_NAME, lock_file
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.conftest import cloud
from tests.files.objects.test_mirror import begun

__all__ = ["cloud"]

Downpour = Callable[..., Any]
Refused = Callable[..., str]
RECORDED = Path(__file__).parents[1] / "recorded" / "handoff" / RECORD_NAME
DATA = "blobs-1"


def add(shared: Path, name: str, *, ending: str | None = "finished", **spec: object) -> Path:
    """Add an experiment with two versions and a state, 1000 bytes each; without an ending it runs.

    The last version has a second name.
    """
    folder = shared / "experiments" / name
    folder.mkdir(parents=True)
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "submitted":
            line["experiment"], line["spec"] = name, {**line["spec"], **spec}
        if line["kind"] == "prepared":
            line["dataset"] = DATA
    last = [{"at": lines[-1]["at"], "kind": "cancelled", "total_seconds": 1.0, "reason": "enough"}]
    ends = {"finished": lines[-1:], "cancelled": last, None: []}[ending]
    text = "".join(json.dumps(line) + "\n" for line in lines[:-1] + ends)
    (folder / RECORD_NAME).write_text(text)
    for each in ("model-000002-aa", "model-000003-bb", "optimizer-000002-000000-000-cc"):
        (folder / f"{each}.safetensors").write_bytes(bytes(1000))
    (folder / "model.safetensors").hardlink_to(folder / "model-000003-bb.safetensors")
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared directory with a finished experiment, and two datasets, of which it has used one."""
    add(tmp_path, "done-1")
    for key in (DATA, "idle-2"):
        (tmp_path / "datasets" / key).mkdir(parents=True)
        (tmp_path / "datasets" / key / "facts.json").write_bytes(bytes(500))
    return tmp_path


def left(shared: Path, place: str) -> set[str]:
    """Return the names in a folder, without locks."""
    return {path.name for path in (shared / place).iterdir() if not path.name.startswith(".")}


def test_sizes_count_each_file_once(downpour: Downpour, shared: Path) -> None:
    """A model with two names counts once; older versions and states are apart from it."""
    found = json.loads(downpour("du", "--shared", shared, "--json").out)
    [one] = found["experiments"]
    assert (one["models_bytes"], one["states_bytes"]) == (1000, 2000)
    assert one["other_bytes"] == (shared / "experiments" / "done-1" / RECORD_NAME).stat().st_size
    used = {each["key"]: each["experiments"] for each in found["datasets"]}
    assert used == {DATA: ["done-1"], "idle-2": []}
    shown = downpour("du", "--shared", shared).out
    assert "1 kB" in shown
    assert "no experiment" in shown


def test_what_only_a_resumption_needs_goes_alone(downpour: Downpour, shared: Path) -> None:
    """The model stays, under both names."""
    outcome = downpour("rm", "done-1", "--states", "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "freed 2 kB\n")
    models = {"model-000003-bb.safetensors", "model.safetensors"}
    assert left(shared, "experiments/done-1") == {*models, RECORD_NAME}


def test_the_only_beginning_of_an_id_is_enough(
    downpour: Downpour, refused: Refused, shared: Path
) -> None:
    """As everywhere else; of several that begin so, nothing goes."""
    add(shared, "done-2")
    assert "2 experiments begin like this" in refused("rm", "done", "--shared", shared)
    shutil.rmtree(shared / "experiments" / "done-2")
    assert downpour("rm", "do", "--shared", shared).out.startswith("done-1: ")
    assert left(shared, "experiments") == set()


def test_old_experiments_and_their_data_go(downpour: Downpour, shared: Path) -> None:
    """Those that can continue stay, and so does what they train on; first, nothing goes at all."""
    add(shared, "stopped-2", ending="cancelled")
    add(shared, "new-3")
    for name in ("done-1", "stopped-2"):
        os.utime(shared / "experiments" / name / RECORD_NAME, (1e9, 1e9))
    words = ("rm", "--older", "30d", "--unused-data", "--shared", shared)
    said = downpour(*words, "--dry-run").err
    assert left(shared, "experiments") == {"done-1", "stopped-2", "new-3"}
    assert "stopped-2 stays: ended after 3 of 3 epochs, and --resume can continue it" in said
    downpour(*words)
    assert left(shared, "experiments") == {"stopped-2", "new-3"}
    assert left(shared, "datasets") == {DATA}
    downpour(*words, "--unfinished", "new-3")
    assert left(shared, "experiments") == left(shared, "datasets") == set()
    assert not list(shared.glob(".*"))


@pytest.mark.parametrize("begins_from", ["done-1/model-000003-bb.safetensors", "done-1@best"])
def test_nothing_goes_if_one_of_several_is_needed(
    refused: Refused, shared: Path, begins_from: str
) -> None:
    """An experiment that runs is refused, and one that another will begin from."""
    running = add(shared, "running-2", ending=None, init_from=begins_from)
    lock = lock_file(running / RUN_LOCK_NAME)
    line = refused("rm", "running-2", "--unfinished", "--shared", shared)
    assert "has not ended; Ctrl-C in its `downpour run` ends it" in line
    assert "running-2 begins from it" in refused("rm", "done-1", "--shared", shared)
    lock.release()
    assert "has not ended, and another manager can continue it" in refused(
        "rm", "running-2", "--shared", shared
    )
    assert left(shared, "experiments") == {"done-1", "running-2"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "ID = None: name experiments, or give --older or --unused-data"),
        (["--older", "old"], "older = 'old': must be a number and s, m, h or d"),
        (["none"], "ID = 'none': no such experiment"),
        (["d", ""], "ID = '': no such experiment"),
        (["../datasets"], "ID = '../datasets': no such experiment"),
    ],
)
def test_wrong_words_are_refused(
    refused: Refused, shared: Path, words: list[str], reason: str
) -> None:
    """In one line, and nothing goes."""
    assert reason in refused("rm", *words, "--shared", shared)
    assert left(shared, "experiments") == {"done-1"}


def test_of_two_removals_one_is_told(refused: Refused, shared: Path, monkeypatch: Any) -> None:
    """The folder leaves under another name first, so the second removal finds none."""
    from downpour.experiments.housekeeping import Housekeeper

    check = Housekeeper.check

    def late(self: Housekeeper, experiment: str, *, unfinished: bool) -> None:
        check(self, experiment, unfinished=unfinished)
        shutil.move(shared / "experiments" / experiment, shared / ".removed-elsewhere")

    monkeypatch.setattr(Housekeeper, "check", late)
    line = refused("rm", "done-1", "--shared", shared)
    assert "ID = 'done-1': another process has removed it" in line


def test_an_object_store_is_tidied_alike(downpour: Downpour, cloud: Cloud) -> None:
    """Journals, files and datasets are objects; an experiment goes once it has ended."""
    shared = cloud.on("manager", create=True)
    bucket = shared.bucket
    assert bucket is not None
    journal = begun(shared)
    shared.store("one").put_new("model-000001-aa.safetensors", [bytes(1000)])
    bucket.put("datasets/idle-2/facts.json", bytes(500))
    words = ("rm", "one", "--unfinished", "--unused-data", "--shared", URL)
    assert "ID = 'one': has not ended" in downpour(*words).err
    ended = out.Concluded(
        experiment="one", ending=ExperimentState.CANCELLED, reason="enough", asked_wrongly=False
    )
    journal.append(2, 1.0, ended)
    journal.commit()
    [one] = json.loads(downpour("du", "--shared", URL, "--json").out)["experiments"]
    assert (one["experiment"], one["models_bytes"]) == ("one", 1000)
    outcome = downpour(*words)
    assert (outcome.status, outcome.err) == (0, "freed 1.5 kB\n")
    places = ("experiments", "journals", "datasets")
    assert [key for place in places for key in bucket.keys(place)] == []
    assert left(shared.root, "experiments") == set()
