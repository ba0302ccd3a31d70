"""Each method of a task, doing what no method should: one line names the task and the method."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.learning.tasks.own import ARGUMENTS
from downpour.learning.training.optimizers import without_effect
from downpour.learning.training.trial import check_trains

from .conftest import loaded

pytestmark = pytest.mark.usefixtures("lab")

RAISED = ("raises", "exits", "interrupts")
RETURNED = {
    "model": ("none", "nan", "odd", "text", "empty"),
    "examples": ("none", "nan", "odd", "empty"),
    "loss": ("none", "nan", "odd", "text", "tensor"),
    "collate": ("none", "nan", "odd", "text", "empty"),
    "metrics": ("none", "nan", "odd", "text", "empty", "tensor"),
    "labels": ("nan", "odd", "text", "empty", "tensor"),
    "groups": ("nan", "odd", "text", "empty", "tensor"),
    "optimizer": ("nan", "odd", "text", "empty", "tensor"),
    "rate": ("nan", "odd", "text", "empty", "tensor"),
    "step": ("none", "nan", "odd", "text", "tensor"),
}
"""What is wrong for each; None is right where the spec decides then, and text can be examples."""
SAID = {
    ("model", "none"): "model() must return a torch.nn.Module",
    ("loss", "nan"): "loss() must return a tensor, but returned float",
    ("metrics", "empty"): "metrics() must return numbers by name, but returned []",
    ("groups", "text"): 'groups() must return a list of {"params": parameters',
    ("rate", "nan"): "rate(0) must return a number, 0 or above, not nan",
}
TABLE = [(method, what) for method, wrong in RETURNED.items() for what in (*RAISED, *wrong)]


def tried(root: Path, method: str, what: str) -> None:
    """Do what a manager does at submission."""
    name = "HostileStep" if method == "step" else "Hostile"
    options = {"hostile": method, "what": what}
    task = loaded(root, f"hostile_tasks:{name}", task_options=options, batch_size=4)
    check_trains(task, [np.arange(8)])


def test_every_method_of_a_task_has_its_rows() -> None:
    """A new one needs some, too; `predict` is called only once there is a model."""
    assert {*RETURNED, "predict"} == set(ARGUMENTS)


@pytest.mark.parametrize(("method", "what"), TABLE, ids=str)
def test_a_hostile_method_is_refused_in_one_line(tmp_path: Path, method: str, what: str) -> None:
    """In a thread, as in a manager: what it raises reaches no one but the user."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(SpecError) as refusal:
        pool.submit(tried, tmp_path, method, what).result()
    line = str(refusal.value)
    assert line.startswith("task = 'hostile_tasks:Hostile")
    assert "\n" not in line
    assert SAID.get((method, what), "") in line
    # A batch may be anything, so only the loss can tell what is wrong with one.
    names = "collate|loss" if method == "collate" and what not in RAISED else method
    assert re.search(rf"\b({names})\b", line), line


def test_an_optimizer_may_leave_the_choice_to_the_spec(tmp_path: Path) -> None:
    """So the spec's fields have their effect, and nothing is said of them."""
    options = {"hostile": "optimizer", "what": "none"}
    task = loaded(tmp_path, "hostile_tasks:Hostile", task_options=options, learning_rate=0.5)
    assert without_effect(task, task.network()) == ()


def test_a_tame_task_is_not_refused(tmp_path: Path) -> None:
    """So each refusal is of the method that the row names."""
    tried(tmp_path, "", "")


@pytest.mark.slow
def test_a_run_warns_of_a_field_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, when training begins; the result keeps the line."""
    fields = {"task": "hostile_tasks:Hostile", "learning_rate": 0.5, "epochs": 1, "batch_size": 4}
    result = downpour.run(fields, workers=1, shared=tmp_path, on="inline", progress=False)
    line = "learning_rate = 0.5 has no effect: hostile_tasks:Hostile has its own optimizer()"
    told = [one.message for one in caplog.records if one.name == "downpour.experiments.client"]
    assert told == [line]
    assert line in result.dataset
