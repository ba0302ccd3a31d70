"""The commands that speak to a manager, with a real one that has no workers."""

import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.host.machine import user_here
from downpour.launchers import LaunchPlan, LocalCluster
from downpour.record.record import export_record, line_text
from downpour.record.record_lines import CancelledLine, SubmittedLine

pytestmark = pytest.mark.usefixtures("forked_clusters")

Downpour = Callable[..., Any]
Refused = Callable[..., str]


@pytest.fixture
def nobody() -> str:
    """An address where no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_an_experiment_is_submitted_listed_and_cancelled(downpour: Downpour, served: Any) -> None:
    """Each command says what a person needs, and nothing else reaches standard output."""
    at = "--manager", served.address
    submitted = downpour("submit", "--name", "wee", "--shards", "2", *at)
    experiment = submitted.out.strip()
    assert submitted.status == 0
    made = Spec.from_toml(submitted.err)
    assert (made.name, made.shards, made.optimizer_state) == ("wee", 2, "keep")
    assert submitted.err.startswith("# auto: optimizer_state = keep, ")
    assert experiment.startswith("wee-")
    assert experiment in downpour("list", *at).out
    assert downpour("cancel", experiment, *at).err.startswith(f"{experiment} cancelled; it was ")
    said = f"{experiment} was cancelled already: nothing to do\n"
    assert downpour("cancel", experiment, *at) == type(submitted)(0, "", said)
    assert "cancelled" in downpour("status", experiment, *at).out
    assert "cancelled" in downpour("watch", experiment, *at).out
    assert "cancelled after" in downpour("results", experiment, *at).out


def test_the_queue_is_seen_and_changed(downpour: Downpour, refused: Refused, served: Any) -> None:
    """Who waits behind whom, and who submitted it; a paused experiment lets the next one run."""
    at = "--manager", served.address

    def submitted(*priority: str) -> str:
        return str(
            downpour("submit", "--name", "queued", "--shards", "2", *priority, *at).out.strip()
        )

    first, second, urgent = submitted(), submitted(), submitted("--priority", "3")
    assert refused("submit", "--name", "x", "--priority", "-1", *at).startswith("priority = -1: ")
    shown = " ".join(downpour("status", *at).out.split())
    assert f"{urgent}: number 1 in the queue, behind {first}, for 2 workers, priority 3" in shown
    assert f"{second}: number 2 in the queue, behind {urgent}, for 2 workers" in shown
    assert (
        downpour("prioritize", second, "4", *at).err == f"{second} got priority 4; it was waiting\n"
    )
    shown = " ".join(downpour("status", *at).out.split())
    assert f"{second}: number 1 in the queue, behind {first}, for 2 workers, priority 4" in shown
    assert f"{urgent}: number 2" in shown
    assert downpour("prioritize", second, "4", *at).err.endswith(": nothing to do\n")
    assert refused("prioritize", second, "x", *at)
    assert refused("prioritize", first, "1", *at).startswith(f"priority = 1: {first} is ")
    assert downpour("pause", urgent[:-1], *at).err == f"{urgent} paused; it was waiting\n"
    assert f"{urgent}: paused" in downpour("status", *at).out
    assert "paused after" in downpour("results", urgent, *at).out
    assert "priority" in downpour("list", *at).out
    listed = json.loads(downpour("list", "--json", *at).out)
    assert {each["owner"] for each in listed[-3:]} == {user_here()}
    assert downpour("cancel", first, *at).status == 0
    assert second in downpour("status", *at).out.partition("\n")[0]
    assert downpour("continue", urgent, *at).err == f"{urgent} continued; it was paused\n"
    again = f"{urgent} was waiting already: nothing to do\n"
    assert downpour("continue", urgent, *at).err == again
    assert downpour("cancel", urgent, *at).err == f"{urgent} cancelled; it was waiting\n"
    downpour("cancel", second, *at)
    assert "nothing to do" in downpour("pause", second, *at).err


def test_output_for_programs_is_whole_and_valid(downpour: Downpour, served: Any) -> None:
    """JSON without color or wrapping; CSV with a header; from the folder as from the manager."""
    at = "--manager", served.address
    experiment = downpour("submit", "--name", "n" * 64, "--shards", "2", *at).out.strip()
    downpour("cancel", experiment, *at)
    listed = json.loads(downpour("list", "--json", *at).out)
    assert listed[-1]["experiment"] == experiment
    status = json.loads(downpour("status", experiment[:-1], "--json", *at).out)
    assert status["experiment"]["state"] == "cancelled"
    asked = json.loads(downpour("results", experiment, "--json", *at).out)
    read = json.loads(downpour("results", experiment, "--json", "--shared", served.shared, *at).out)
    assert asked["state"] == read["state"] == "cancelled"
    assert downpour("results", experiment, "--csv", *at).out.startswith("epoch,")


@pytest.mark.parametrize("command", ["status", "watch", "cancel", "results"])
def test_an_unknown_experiment_is_told_in_one_line(
    refused: Refused, served: Any, command: str
) -> None:
    """And how to find those that are known."""
    line = refused(command, "nope", "--manager", served.address)
    assert line == "experiment: no experiment 'nope'; `downpour list` names them"


@pytest.mark.slow
def test_a_manager_that_never_answers_does_not_hold_up_for_long(downpour: Downpour) -> None:
    """After some seconds the command gives up, in one line."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        outcome = downpour("status", "--manager", f"127.0.0.1:{silent.getsockname()[1]}")
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1


def test_a_manager_that_took_over_elsewhere_is_found_through_its_folder(
    downpour: Downpour, refused: Refused, served: Any, nobody: str
) -> None:
    """Whichever command asks; without the folder, the address that was given is all there is."""
    seen = "--manager", nobody, "--shared", str(served.shared)
    experiment = downpour("submit", "--name", "moved", "--shards", "2", *seen).out.strip()
    assert experiment in downpour("list", *seen).out
    assert downpour("cancel", experiment, *seen).status == 0
    assert "cancelled" in downpour("watch", experiment, *seen).out
    assert "cancelled" in downpour("status", experiment, *seen).out
    line = refused("list", "--manager", nobody)
    assert line == f"{nobody} cannot be reached: Connection refused"


def test_a_folder_that_is_not_there_is_named(refused: Refused, tmp_path: Path) -> None:
    """A mistyped path would else look like a cluster that is down."""
    line = refused("status", "--shared", tmp_path / "nowhere")
    assert "no manager leads in" in line
    assert "there is no such folder" in line
    assert "no such folder" not in refused("status", "--shared", tmp_path)


def test_without_a_manager_the_directory_is_listed(
    downpour: Downpour, refused: Refused, tmp_path: Path
) -> None:
    """From records alone, where no manager was named; what is no experiment is left out."""
    seen = "--shared", str(tmp_path)
    (tmp_path / "experiments").mkdir()
    empty = downpour("list", *seen)
    assert (empty.status, empty.out) == (0, "no experiments yet\n")
    assert downpour("list", "--json", *seen).out == "[]\n"
    assert refused("status", *seen)
    folder = tmp_path / "experiments" / "gone-1"
    folder.mkdir(parents=True)
    (tmp_path / "experiments" / "copied").mkdir()
    spec = Spec(epochs=7).model_dump()
    submitted = SubmittedLine(experiment="gone-1", name="gone", spec=spec, version="0", shards=2)
    export_record(
        folder, [line_text(0.0, submitted), line_text(1.0, CancelledLine(reason="enough"))]
    )
    outcome = downpour("list", *seen)
    assert (outcome.status, outcome.err) == (0, f"the manager does not answer; {tmp_path} holds:\n")
    assert outcome.out.splitlines()[1].split() == ["gone-1", "cancelled", "0/7", "–"]
    assert json.loads(downpour("list", "--json", *seen).out)[0]["name"] == "gone"
    for words in ((), ("gone-1",)):
        shown = downpour("status", *words, *seen)
        assert (shown.status, shown.err) == (0, outcome.err)
        assert "cancelled" in shown.out
        assert "its manager does not answer here" in shown.out
    missing = downpour("status", "other-1", *seen)
    assert (missing.status, missing.err.count("\n")) == (2, 1)


def test_a_run_in_progress_is_shown_from_its_journal(downpour: Downpour, tmp_path: Path) -> None:
    """No directory names its manager, and no record is written before its end."""
    with closing(start_manager(ManagerOptions(shared=str(tmp_path), port=0, embedded=True))) as own:
        experiment = downpour("submit", "--shards", 1, "--manager", own.address).out.strip()
        assert not (tmp_path / "experiments" / experiment / "record.jsonl").exists()
        while "preparing" in (shown := downpour("status", "--shared", tmp_path)).out:
            pass
    assert (shown.status, shown.err) == (0, f"the manager does not answer; {tmp_path} holds:\n")
    assert shown.out.startswith(f"{experiment}  running\nepoch 1 of 5\n")


def test_a_long_list_is_cut(downpour: Downpour, served: Any) -> None:
    """To the last experiments, and a line says so; all are listed where that is asked for."""
    at = "--manager", str(served.address)
    names = [downpour("submit", "--shards", "1", "--name", name, *at).out.strip() for name in "abc"]
    every = [one["experiment"] for one in json.loads(downpour("list", "--json", *at).out)]
    assert [one for one in every if one in names] == names
    cut = downpour("list", "--last", "2", "--json", *at)
    assert [one["experiment"] for one in json.loads(cut.out)] == names[1:]
    assert cut.err == "only the last 2 experiments are listed; --last 0 lists all\n"
    whole = downpour("list", "--last", "0", "--json", *at)
    assert ([one["experiment"] for one in json.loads(whole.out)], whole.err) == (every, "")
    for name in names:
        downpour("cancel", name, *at)


@pytest.mark.slow
def test_watching_ends_with_the_experiment_that_was_active(
    downpour: Downpour, tmp_path: Path
) -> None:
    """Without an identifier too; and a submission that stays prints the result."""
    with LocalCluster(
        LaunchPlan(ManagerOptions(shared=str(tmp_path), port=0), workers=1)
    ) as cluster:
        at = "--manager", cluster.address
        words = ["--epochs", "1", "--shards", "1", *at]
        submitted = downpour("submit", "--watch", *words)
        assert submitted.status == 0
        assert "finished in" in submitted.out
        downpour("submit", "--epochs", "20", "--shards", "1", *at)
        assert "finished" in downpour("watch", *at).out


def test_results_of_an_older_build_are_refused_in_one_line(
    downpour: Downpour, tmp_path: Path
) -> None:
    """Its record has other fields."""
    recorded = Path(__file__).parents[1] / "recorded" / "gestures" / "record.jsonl"
    text = recorded.read_text().replace('"last_batch": "rest", ', "")
    folder = tmp_path / "experiments" / "gestures-7f3a"
    folder.mkdir(parents=True)
    (folder / "record.jsonl").write_text(text)
    outcome = downpour("results", folder.name, "--shared", tmp_path)
    assert outcome.status != 0
    assert "line 1 is not a fact of an experiment: an older build of Downpour" in outcome.err
    assert outcome.err.count("\n") == 1
