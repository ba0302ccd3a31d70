"""A manager, its workers and a client that have an object store in common and nothing else."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import obstore
import pytest

from tests.chaos import forked
from tests.chaos.forked import model_of_run
from tests.files.objects.lab import S3Server
from tests.learning.shipping.conftest import written
from tests.learning.shipping.foreign import FLAGS, MODULE, PROJECT
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPEC = ["--dataset", "digits", "--model", "mlp", "--shards", "2", "--seed", "3", "--epochs", "6"]
SPEC += ["--meet", "1"]
SPEC += ["--batch-size", "32", "--optimizer-state", "keep", "--momentum", "0.9"]


class Machines:
    """Processes of downpour's, each with a machine's own folder; ended with the test."""

    def __init__(self, s3: S3Server, url: str, tmp_path: Path) -> None:
        self._s3, self._url, self._tmp_path = s3, url, tmp_path
        self.running: list[forked.Forked] = []
        self._store: Any = s3.objects("bucket", url.split("/", 3)[3])

    def start(self, machine: str, *words: str, **variables: str) -> forked.Forked:
        """Start a command on a machine; what it says is in a file of the machine's name."""
        with self._tmp_path.joinpath(f"{machine}.log").open("ab") as log:
            files = {1: log.fileno(), 2: log.fileno()}
            process = forked.Forked(self._words(words), self._of(machine) | variables, files=files)
        self.running.append(process)
        return process

    def run(self, machine: str, *words: str) -> tuple[int, str, str]:
        done = forked.run(self._words(words), self._of(machine))
        return done.returncode, done.stdout, done.stderr

    def _words(self, words: Sequence[str]) -> list[str]:
        return [*words, "--shared", self._url]

    def _of(self, machine: str) -> dict[str, str]:
        own = {"DOWNPOUR_LOCAL": str(self._tmp_path / machine)}
        return {**os.environ, **self._s3.environment, **own}

    def objects(self) -> list[str]:
        return [found["path"] for found in self._store.list().collect()]

    def leader(self) -> str:
        """The address of the manager that leads; empty if there is none."""
        terms = sorted(key for key in self.objects() if key.startswith("terms/"))
        return str(json.loads(self.content(terms[-1]))["addresses"][0]) if terms else ""

    def content(self, key: str) -> bytes:
        """An object, as any other program reads it."""
        return bytes(obstore.get(self._store, key).bytes())


@pytest.fixture
def machines(s3: S3Server, tmp_path: Path) -> Iterator[Machines]:
    """Machines that share a place in the bucket."""
    made = Machines(s3, f"s3://bucket/{tmp_path.name}", tmp_path)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def test_a_worker_and_the_manager_are_killed_and_the_bytes_are_those_of_a_local_run(
    machines: Machines, tmp_path: Path
) -> None:
    """Each has its own folder, so all went through the store, where nothing in flight is left."""
    manager = machines.start("a", "manager", "--port", "0")
    workers = [machines.start(name, "worker", "--name", name) for name in ("b", "c")]
    until(machines.leader)
    status, out, err = machines.run("d", "submit", *SPEC, "--manager", machines.leader())
    assert status == 0, err
    experiment = out.split()[0]
    until(lambda: any("model-000001-" in key for key in machines.objects()))
    workers[0].kill()
    until(lambda: any("model-000003-" in key for key in machines.objects()))
    manager.kill()
    manager.wait()
    machines.start("a", "manager", "--port", "0")
    finals = f"experiments/{experiment}/model.safetensors"
    until(lambda: any(key.endswith(finals) for key in machines.objects()))
    final = next(key for key in machines.objects() if key.endswith(finals))
    assert machines.content(final) == model_of_run(tmp_path / "local", *SPEC, "--workers", "2")
    in_flight = ("update-", "snapshot-", "indices-")
    until(lambda: not any(word in key for key in machines.objects() for word in in_flight))
    # With these, one a shard, another experiment would go on.
    until(lambda: sum("optimizer-000005-" in key for key in machines.objects()) == 2)
    assert sum("optimizer-" in key for key in machines.objects()) == 2


def test_a_manager_on_another_machine_goes_on_where_the_first_ones_machine_is_lost(
    machines: Machines, tmp_path: Path
) -> None:
    """It has nothing but the bucket, and the bytes are those of a local run."""
    first = machines.start("a", "manager", "--port", "0")
    machines.start("b", "worker")
    until(machines.leader)
    second = machines.start("c", "manager", "--port", "0", "--successor")
    status, out, err = machines.run("d", "submit", *SPEC, "--manager", machines.leader())
    assert status == 0, err
    experiment = out.split()[0]
    until(lambda: any("model-000002-" in key for key in machines.objects()))
    first.kill()
    first.wait()
    shutil.rmtree(tmp_path / "a")
    finals = f"experiments/{experiment}/model.safetensors"
    until(lambda: finals in machines.objects() or second.poll() is not None)
    assert machines.content(finals) == model_of_run(tmp_path / "local", *SPEC, "--workers", "2")
    status, out, err = machines.run(
        "d", "results", experiment, "--json", "--manager", machines.leader()
    )
    assert status == 0, err
    rounds = [line["round"] for line in json.loads(out)["rounds"]]
    assert rounds == list(range(1, 7)), "the record has the rounds of both managers"
    second.terminate()
    second.wait()
    status, kept, err = machines.run("e", "results", experiment, "--json")
    assert status == 0, err
    assert json.loads(kept)["rounds"] == json.loads(out)["rounds"], "no manager is needed for them"
    status, listed, err = machines.run("e", "list", "--json")
    assert [line["experiment"] for line in json.loads(listed)] == [experiment], err


def test_a_second_manager_is_refused_on_every_machine(machines: Machines) -> None:
    """In one line, which says who serves."""
    machines.start("a", "manager", "--port", "0")
    until(machines.leader)
    for machine in ("a", "b"):
        status, _, err = machines.run(machine, "manager", "--port", "0")
        assert status == 2
        assert "another manager serves this directory" in err
        assert err.count("\n") == 1


def test_a_bucket_that_does_not_exist_is_one_line(machines: Machines) -> None:
    """For each command that names it, and nothing is left running."""
    for words in (["manager", "--port", "0"], ["worker", "--connect-seconds", "0"]):
        machines._url = "s3://nowhere/x"
        status, out, err = machines.run("a", *words)
        assert (status, out) == (2, "")
        assert err == "downpour: shared directory s3://nowhere/x: no such bucket\n"


def test_a_workers_code_comes_through_the_bucket(machines: Machines, tmp_path: Path) -> None:
    """The manager's machine alone has the files of the task, and the bucket one object of them."""
    project = written(tmp_path / "project", PROJECT)
    allowed = {"DOWNPOUR_ALLOW": MODULE}
    machines.start("a", "manager", "--port", "0", **allowed, DOWNPOUR_CODE=str(project))
    machines.start("b", "worker", "--accept-code", **allowed)
    until(machines.leader)
    words = ["submit", *FLAGS, "--manager", machines.leader()]
    status, out, err = machines.run("c", *words)
    assert status == 0, err
    finals = f"experiments/{out.split()[0]}/model.safetensors"
    until(lambda: any(key.endswith(finals) for key in machines.objects()))
    (bundle,) = (key for key in machines.objects() if "/code-" in key)
    digest = bundle.rpartition("/code-")[2].removesuffix(".json.gz")
    unpacked = tmp_path / "b" / "code" / digest
    assert {name: (unpacked / name).read_bytes() for name in PROJECT} == PROJECT
    assert not (tmp_path / "a" / "code").exists()
