"""A user's code that ends its process does not end a cluster's manager."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from downpour.base.errors import SpecError
from downpour.cluster.manager.rehearsal import Rehearsal
from downpour.learning.allowlist import VARIABLE
from tests.conftest import Allow
from tests.specs import plain_spec

HELPED = """
import subprocess, torch
import downpour

class Helped(downpour.Task):
    def model(self):
        subprocess.Popen(["sh", "-c", "sleep 3600; :", __name__])
        return torch.nn.Linear(1, 1)

    def examples(self, part):
        return [(torch.ones(1), torch.ones(1))] * 8

    def loss(self, model, batch):
        return model(batch[0]).mean()
"""

TASK = """
import ctypes, os, torch
import downpour

class Ends(downpour.Task):
    def __init__(self, where="", how="exit"):
        self.where, self.how = where, how
        self.end("init")

    def end(self, where):
        if where == self.where:
            if self.how == "exit":
                os._exit(7)
            ctypes.string_at(0)

    def model(self):
        self.end("model")
        return torch.nn.Linear(1, 1)

    def examples(self, part):
        self.end("examples")
        return [(torch.ones(1), torch.ones(1))] * 8

    def loss(self, model, batch):
        self.end("loss")
        return model(batch[0]).mean()

    def metrics(self, model, batch):
        self.end("metrics")
        return {"one": (1.0, 1)}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_clusters")
@pytest.mark.parametrize(
    ("where", "how", "said"),
    [
        *((where, "exit", "ends its process with os._exit(7) (") for where in
          ("init", "model", "examples", "loss", "metrics")),
        ("loss", "crash", "ends its process by SIGSEGV ("),
    ],
)  # fmt: skip
def test_code_that_ends_its_process_is_refused_by_a_manager_that_lives(
    cluster: Any, tmp_path: Path, allowing: Allow, where: str, how: str, said: str
) -> None:
    """The reason names the task and the line, and the next experiment is taken."""
    name = f"lab{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(TASK)
    allowing(tmp_path, name)
    options = {"where": where, "how": how}
    refused = cluster.submit(task=f"{name}:Ends", task_options=options)
    assert cluster.refusal_of(refused).startswith(f"task = '{name}:Ends': {said}{name}.py:")
    assert cluster.submit(name="next").startswith("next-")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_clusters")
@pytest.mark.parametrize("method", ["collate", "labels", "groups", "optimizer", "rate", "step"])
def test_every_other_method_may_end_its_process_too(
    tmp_path: Path, allowing: Allow, method: str
) -> None:
    """With status 0, as a script ends that has done its work; the line is the user's."""
    tasks = Path(__file__).parents[2] / "learning" / "tasks"
    allowing(tasks, "hostile_tasks")
    task = "hostile_tasks:HostileStep" if method == "step" else "hostile_tasks:Hostile"
    options: Any = {"hostile": method, "what": "ends"}
    spec = plain_spec(task=task, task_options=options, shards=1, batch_size=4)
    with pytest.raises(SpecError, match=r"ends its process with os._exit\(0\) \(hostile_tasks.py:"):
        Rehearsal(spec, tmp_path, None).rehearse()


@pytest.mark.slow
def test_a_helper_that_a_task_leaves_behind_holds_up_nothing(
    tmp_path: Path, allowing: Allow
) -> None:
    """It inherits the streams of the trial, and ends with it."""
    name = f"lab{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(HELPED)
    allowing(tmp_path, name)
    spec = plain_spec(task=f"{name}:Helped", shards=1, batch_size=4)
    Rehearsal(spec, tmp_path, None).rehearse()
    helpers = [one for one in psutil.process_iter(["cmdline"]) if name in str(one.info["cmdline"])]
    # A process that is killed is there for a moment more on a busy machine.
    _, alive = psutil.wait_procs(helpers, timeout=30)
    assert alive == []


COMPARED = """
import sys
from pathlib import Path
from downpour.cluster.manager.global_model import GlobalModel
from downpour.cluster.manager.rehearsal import Rehearsal
from downpour.learning.tasks.agreement import open_data, prepare_data
from tests.specs import plain_spec
import numpy as np

spec, folder = plain_spec(task=sys.argv[1], shards=1, batch_size=4), Path(sys.argv[2])
rehearsal = Rehearsal(spec, folder, None)
rehearsal.rehearse()
key = prepare_data(spec, folder)
drawn = GlobalModel(spec, open_data(spec, folder, key))
losses, task = [], sys.modules["process_tasks"].Plain
loss = task.loss
task.loss = lambda *args: losses.append(1) or loss(*args)
drawn.check_trains([np.arange(48)], cost=rehearsal.cost)
print(rehearsal.agrees(key, drawn), rehearsal.cost, f"and the manager took {len(losses)} steps")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Plain", r"True a step takes .* and the manager took 2 steps"),
        (
            "Hashes",
            r"another process: its loss differs after one step, through hash\(\) or the order",
        ),
        (
            "Labelled",
            r"another process: its examples or labels differ, through hash\(\) or the order",
        ),
    ],
)
def test_a_rehearsal_notices_a_dependence_on_hashes(tmp_path: Path, name: str, said: str) -> None:
    """It alone has another hash seed; the manager repeats the compared steps, and nothing else."""
    tasks = Path(__file__).parents[2] / "learning" / "training"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(tasks), *sys.path]),
        VARIABLE: "process_tasks",
    }
    words = [sys.executable, "-c", COMPARED, f"process_tasks:{name}", str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert re.search(said, done.stdout + done.stderr)
