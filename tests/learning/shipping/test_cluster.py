"""Real workers on machines that lack a task's code, have another version, or refuse it."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from downpour import Client, Spec
from downpour.learning.shipping import REMEDY
from downpour.network.rpc.messages import Status
from downpour.record import Result
from tests.chaos.stage import Process
from tests.learning.shipping.conftest import written
from tests.learning.shipping.foreign import CHANGED, MODULE, PROJECT
from tests.specs import model_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SPEC = Spec(task=f"{MODULE}:Line", shards=2, epochs=3, batch_size=8, policy="wait")


class Cluster:
    """A manager that has the code, and workers that are each on a machine of their own."""

    def __init__(self, tmp_path: Path, stack: ExitStack) -> None:
        self.tmp_path, self._stack = tmp_path, stack
        self.shared = tmp_path / "shared"
        self.project = written(tmp_path / "project", PROJECT)
        self.other = written(tmp_path / "other", CHANGED)
        self.manager = self._manager(self.project)
        self.address = self.manager.says(r"^manager at (\S+),")[1]

    def _manager(self, code: Path, port: str = "0") -> Process:
        return self._process("manager", "--port", port, DOWNPOUR_CODE=str(code))

    def another_manager(self, code: Path) -> None:
        """Start the manager again, with other code."""
        self.manager.kill()
        self.manager = self._manager(code, self.address.rpartition(":")[2])
        self.manager.says(r"^manager at (\S+),")

    def worker(self, name: str, *words: str, **variables: str) -> Process:
        own = str(self.tmp_path / f"own-{name}")
        named = ["--manager", self.address, "--name", name, *words]
        process = self._process("worker", *named, **{"DOWNPOUR_LOCAL": own, **variables})
        process.says("^worker at ")
        return process

    def run(self, spec: Spec, look: Callable[[Status], Any] = lambda _: None) -> Result:
        with Client(self.address, shared=self.shared) as client:
            return client.wait(client.submit(spec), on_status=look)

    def _process(self, kind: str, *words: str, **variables: str) -> Process:
        given = {"DOWNPOUR_ALLOW": MODULE, "DOWNPOUR_CODE": "", **variables}
        process = Process(kind, "--shared", str(self.shared), *words, **given)
        self._stack.callback(process.kill)
        return process

    def unpacked(self, name: str) -> list[str]:
        """Return the files that a machine has unpacked."""
        code = self.tmp_path / f"own-{name}" / "code"
        return sorted(path.name for path in code.glob("*/*.py"))


def test_workers_without_the_code_train_to_the_bytes_of_one_that_has_it(tmp_path: Path) -> None:
    """One lacks the module, one has another file, and one refuses: its reason is shown."""
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        alone = cluster.worker("has", DOWNPOUR_CODE=str(cluster.project))
        wanted = model_of(cluster.run(SPEC))
        alone.kill()
        assert cluster.unpacked("has") == []
        cluster.worker("refuses", DOWNPOUR_CODE=str(cluster.other))
        cluster.worker("lacks", "--accept-code")
        cluster.worker("differs", DOWNPOUR_CODE=str(cluster.other), DOWNPOUR_ACCEPT_CODE="1")
        said = set[str]()
        result = cluster.run(SPEC, lambda status: said.update(status.decisions))
        assert model_of(result) == wanted
        assert cluster.unpacked("lacks") == cluster.unpacked("differs") == sorted(PROJECT)
        assert cluster.unpacked("refuses") == []
        # Two shards, and the one that refuses was there first: it was asked once.
        line = "foreign_parts.py has changed since the experiment was submitted"
        refused = [failure for failure in result.failures if failure.worker == "refuses"]
        assert [failure.reason for failure in refused] == [f"{line}{REMEDY}"]
        assert all(failure.blameless for failure in refused)
        assert any(f"no more tasks for refuses: {line}{REMEDY}" in one for one in said)


def test_changed_code_needs_no_restart_of_a_worker(tmp_path: Path) -> None:
    """Its helpers compute with the new code as well; a worker that has it makes the same bytes."""
    spec = SPEC.replace(inside={"processes": 2}, shards=1)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        worker = cluster.worker("lacks", "--accept-code")
        first = cluster.run(spec)
        cluster.another_manager(cluster.other)
        changed = cluster.run(spec)
        assert worker.popen.poll() is None
        assert cluster.unpacked("lacks") == sorted([*PROJECT, *CHANGED])
        worker.kill()
        cluster.worker("has", DOWNPOUR_CODE=str(cluster.other))
        assert model_of(cluster.run(spec)) == model_of(changed) != model_of(first)
        assert "trains alone" not in "".join(worker.said)
