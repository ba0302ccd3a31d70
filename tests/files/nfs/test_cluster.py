"""A manager and two workers on machines of their own: what comes of it is what one machine makes.

They share nothing but NFS, and a network on which a token is asked for. The manager and the workers
stay for all tests here, because torch takes half a minute to import on such a machine.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import downpour
from downpour.base.errors import FileMissing
from downpour.record.record import read_record
from downpour.record.view import to_fields
from tests.files.nfs.lab import MOUNTED, Guest, Lab
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SPEC = downpour.Spec(name="lab", shards=2, epochs=4)
TOKEN = MOUNTED / "token"
PAUSE_SECONDS = 12
LATENCY_MS = 20
LOSS_PERCENT = 1


@dataclass(frozen=True)
class Cluster:
    """A manager on the first machine, and workers on the next two."""

    lab: Lab
    manager: Guest
    workers: tuple[Guest, Guest]

    @property
    def words(self) -> tuple[object, ...]:
        """How a command finds the manager, and proves that it may speak to it."""
        return "--manager", self.manager.address, "--token-file", TOKEN

    def submit(self) -> str:
        overrides = ("--name", SPEC.name, "--shards", SPEC.shards, "--epochs", SPEC.epochs)
        said = self.workers[0].downpour("submit", *overrides, *self.words)
        return next(line for line in said.splitlines() if line.startswith(f"{SPEC.name}-"))

    def has_ended(self, experiment: str) -> bool:
        """Whether the experiment is over; where it failed, so does the test."""
        kinds = [fact["kind"] for fact in self.facts(experiment)]
        assert not {"failed", "cancelled"} & set(kinds)
        return "finished" in kinds

    def facts(self, experiment: str) -> list[dict[str, Any]]:
        with suppress(FileMissing):
            record = read_record(self.folder(experiment) / "record.jsonl")
            return [to_fields(line) for _, line in record]
        return []

    def folder(self, experiment: str) -> Path:
        return self.lab.export / "experiments" / experiment


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> Cluster:
    """A cluster that is ready to train; it ends with the lab."""
    manager, *workers = lab.guests[:3]
    found = Cluster(lab, manager, (workers[0], workers[1]))
    trust = ("--token-file", TOKEN)
    manager_log = manager.start_downpour(
        "manager", "--shared", MOUNTED, "--host", "0.0.0.0", "--make-token", *trust
    )
    until((lab.export / "token").exists)
    logs = [w.start_downpour("worker", "--shared", MOUNTED, *found.words) for w in workers]
    until(partial(says, manager, manager_log, "manager at"))
    for worker, log in zip(workers, logs, strict=True):
        until(partial(says, worker, log, "worker at"))
    return found


def says(guest: Guest, log: Path, words: str) -> bool:
    """Whether a process has got so far."""
    return words in guest.run("cat", log)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> downpour.Result:
    """The same experiment, on this machine alone."""
    return downpour.run(SPEC, workers=2, shared=tmp_path_factory.mktemp("local"))


def check_equal(cluster: Cluster, experiment: str, local: downpour.Result) -> None:
    """Compare every model version, byte by byte, between machines of one numeric class."""
    folder = local.model_file.parent if local.model_file else None
    assert folder is not None
    here = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    assert numeric_classes(cluster.facts(experiment)) == numeric_classes(here)
    assert models(cluster.folder(experiment)) == models(folder)


def numeric_classes(facts: list[dict[str, Any]]) -> set[str]:
    """Return the numeric classes of the workers that have joined."""
    return {fact["numeric_class"] for fact in facts if fact["kind"] == "worker-joined"}


def models(folder: Path) -> list[bytes]:
    """Return the bytes of all model versions that are kept, in their order."""
    found = [path.read_bytes() for path in sorted(folder.glob("model*.safetensors"))]
    assert len(found) == 2
    return found


@contextmanager
def a_bad_network(*guests: Guest) -> Iterator[None]:
    """Delay what the machines send, and lose some of it."""
    terms = ("delay", f"{LATENCY_MS}ms", "loss", f"{LOSS_PERCENT}%")
    for guest in guests:
        guest.run("tc", "qdisc", "add", "dev", "vec0", "root", "netem", *terms)
    try:
        yield
    finally:
        for guest in guests:
            guest.run("tc", "qdisc", "del", "dev", "vec0", "root")


def test_machines_that_share_nothing_but_files_train_the_same_model(
    cluster: Cluster, local: downpour.Result
) -> None:
    """The same bytes as one machine makes, in every version; and both workers took part."""
    experiment = cluster.submit()
    until(lambda: cluster.has_ended(experiment))
    check_equal(cluster, experiment, local)
    told = [fact for fact in cluster.facts(experiment) if fact["kind"] == "updated"]
    assert len({fact["worker"] for fact in told}) == 2


def test_a_bad_network_costs_time_and_changes_no_byte(
    cluster: Cluster, local: downpour.Result
) -> None:
    """Forty milliseconds there and back, and every hundredth packet lost."""
    with a_bad_network(cluster.manager, *cluster.workers):
        experiment = cluster.submit()
        until(lambda: cluster.has_ended(experiment))
    check_equal(cluster, experiment, local)


def test_a_file_server_that_stands_still_costs_time_and_changes_no_byte(
    cluster: Cluster, local: downpour.Result
) -> None:
    """In the middle of training, for longer than a worker may be silent."""
    experiment = cluster.submit()
    folder = cluster.folder(experiment)
    until(lambda: any(folder.glob("model-000001-*")), every_seconds=0.05)
    with cluster.lab.server_paused():
        assert not (folder / "model.safetensors").exists(), "it was over before: nothing is tested"
        Event().wait(PAUSE_SECONDS)  # as long as the server stands still
    until(lambda: cluster.has_ended(experiment))
    check_equal(cluster, experiment, local)


def test_the_doctor_finds_a_machine_well_or_names_the_wrong_folder(cluster: Cluster) -> None:
    """Against a manager on another machine; nothing stays behind on the server."""
    guest = cluster.workers[1]
    before = sorted(cluster.lab.export.iterdir())
    rows = json.loads(guest.downpour("doctor", "--shared", MOUNTED, *cluster.words, "--json"))
    assert {check["verdict"] for check in rows["checks"]} == {"ok"}
    wrong = guest.downpour("doctor", "--shared", "/mnt", *cluster.words, status=2)
    assert "mount the manager's folder here" in " ".join(wrong.split())
    assert sorted(cluster.lab.export.iterdir()) == before
