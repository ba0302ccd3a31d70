"""What a manager computes itself: the trial of a network, and evaluations."""

import re
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from downpour.base.errors import OutOfMemory, SpecError
from downpour.base.names import Devices
from downpour.base.states import Evaluation
from downpour.cluster.manager import global_model, rehearsal
from downpour.cluster.manager.global_model import GlobalModel
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.numerics import numeric_class
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.evaluation import evaluate_on
from tests.cluster.manager.conftest import NUMERICS
from tests.conftest import Allow


def test_a_network_that_fails_its_trial_is_refused_before_any_task(
    cluster: Any, tmp_path: Path, allowing: Allow, caplog: Any
) -> None:
    """The manager tries two steps itself; the cause is the user's, and the line is theirs."""
    worker = cluster.join("one")
    failures: list[tuple[str, dict[str, Any], str]] = [
        (
            "self.calls += 1; x = x / self.calls",
            {},
            "gives different bytes in two trainings: its loss differs",
        ),
        ("", {"learning_rate": 1e38}, "learning_rate = 1e.38: too large"),
        ("x = [][2]", {}, r"IndexError: list index out of range \(lab\w+\.py:8 in forward\)"),
    ]
    for body, changes, reason in failures:
        name = f"lab{secrets.token_hex(4)}"
        text = (
            "from torch import nn\n"
            "class Net(nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.calls, self.dense = 0, nn.Linear(64, 10)\n"
            "    def forward(self, x):\n"
            "        if self.training:\n"
            f"            pass; {body}\n"
            "        return self.dense(x.flatten(1))\n"
        )
        (tmp_path / f"{name}.py").write_text(text)
        allowing(tmp_path, name)
        told = cluster.refusal_of(cluster.submit(model=f"{name}:Net", **changes))
        assert re.search(reason, told), told
        assert told.endswith("; the manager's log has the traceback") == ("IndexError" in reason)
        assert ("Traceback" in caplog.text) == ("IndexError" in reason)
    assert worker.tasks == []


def test_a_device_that_no_worker_has_is_refused_at_once(cluster: Any) -> None:
    """Where there are no workers yet, one that has it may come."""
    waiting = cluster.submit(device="cuda")
    cluster.client.cancel(waiting)
    cluster.join("one")
    with pytest.raises(SpecError, match="device = 'cuda': no worker here has one, only cpu; "):
        cluster.submit(device="cuda")
    assert [one.experiment for one in cluster.client.list_experiments()] == [waiting]


def test_a_card_that_no_worker_has_is_refused_and_the_best_is_always_there(cluster: Any) -> None:
    """A worker tells of its card by its number, and `auto` is what each worker has."""
    cluster.join("one")
    two = cluster.join("two")
    cluster.client.register_worker(replace(two.registration, device="cuda:1"))
    with pytest.raises(SpecError, match="start a worker with --device cuda:0") as refused:
        cluster.submit(device="cuda:0")
    assert "no worker here has one, only cpu, cuda:1" in str(refused.value)
    status = cluster.client.status("", 0, 0.0)
    assert {one.worker: one.device for one in status.workers} == {"one": "cpu", "two": "cuda:1"}
    for device in ("cuda:1", "cuda", "auto"):
        cluster.client.cancel(cluster.submit(device=device))


def test_everybodys_numeric_class_is_on_screen_and_the_managers_on_record(cluster: Any) -> None:
    """Bytes are promised within one class, so a mixture must be seen; the fakes are of another."""
    cluster.join("one")
    experiment = cluster.submit()
    status = cluster.end_of(experiment)
    assert status.numeric_class == numeric_class("cpu")
    assert status.workers[0].numeric_class == NUMERICS
    [drawn] = cluster.facts(experiment, "prepared")
    assert drawn["numeric_class"] == str(numeric_class("cpu"))


_LACKING = """
import resource
import sys
from pathlib import Path

import numpy as np

from downpour.cluster.manager.global_model import GlobalModel
from downpour.core.spec import Spec
from downpour.host import machine
from downpour.learning.datasets import open_prepared, prepare

folder = Path(sys.argv[1])
spec = Spec.make({"model": "mlp", "model_options": {"hidden": [5000, 5000]}})
drawn = GlobalModel(spec, open_prepared(folder, prepare(spec, folder)))
before = resource.getrlimit(resource.RLIMIT_DATA)
machine._limited_groups = lambda: iter([(320 << 20, 32 << 20)])
assert drawn.check_trains([np.arange(100)]) is None
assert resource.getrlimit(resource.RLIMIT_DATA) == before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such limits")
def test_a_trial_that_lacks_memory_refuses_nothing_and_tells_the_limit(tmp_path: Path) -> None:
    """Workers may have more, and the manager lives; in a process of its own, for memory is kept."""
    words = [sys.executable, "-c", _LACKING, str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    assert "could not try the network" in told
    assert " of the 320 MiB of its group are free" in told


@pytest.mark.parametrize("kills", [(0, 1), (0, 0)])
def test_a_rehearsal_that_the_kernel_kills_for_memory_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, int]
) -> None:
    """Only if the kernel counts such a kill: the code may have ended its process itself."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\nkill -9 $$\n")
    python.chmod(0o755)
    counted = iter(kills)
    monkeypatch.setattr(rehearsal, "kills", lambda: next(counted))
    monkeypatch.setattr(sys, "executable", str(python))
    tried = rehearsal.Rehearsal(Spec.make({"task": "big:Big"}), tmp_path, None)
    if kills == (0, 1):
        tried.rehearse()
        assert tried.agrees("key", None) is False
    else:
        with pytest.raises(SpecError, match="ends its process by SIGKILL"):
            tried.rehearse()


def test_an_evaluation_that_lacks_memory_of_the_card_takes_place_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers may have all of it; it is said once, and the next ones begin there."""
    asked: list[str] = []

    def lacking(network: nn.Module, loaded: LoadedTask, *parts: Any) -> Evaluation:
        asked.append(loaded.spec.device)
        if loaded.spec.device == "cuda":
            raise OutOfMemory("CUDA out of memory")
        return evaluate_on(network, loaded, *parts)

    monkeypatch.setattr(global_model, "devices_here", lambda: Devices({"cuda": 1}))
    monkeypatch.setattr(global_model, "evaluate_on", lacking)
    spec = Spec(device="cuda")
    model = GlobalModel(spec, open_prepared(tmp_path, prepare(spec, tmp_path)))
    first, second = (model.evaluate(model.parameters()) for _ in range(2))
    assert asked == ["cuda", "cpu", "cpu"]
    assert first.loss == second.loss
    assert caplog.text.count("the manager evaluates on the CPU") == 1


def test_a_machine_that_lacks_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no other place than the processor's."""

    def lacking(_network: nn.Module, _loaded: LoadedTask, *_parts: Any) -> Evaluation:
        raise OutOfMemory("not enough memory")

    monkeypatch.setattr(global_model, "evaluate_on", lacking)
    model = GlobalModel(Spec(), open_prepared(tmp_path, prepare(Spec(), tmp_path)))
    with pytest.raises(OutOfMemory, match="not enough memory"):
        model.evaluate(model.parameters())
