"""The optimizer that trains is found before a spec is resolved, wherever a task makes it."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.errors import DownpourError, LaunchError, SpecError
from downpour.core.resolve import LocalOptimizer
from downpour.core.spec import Spec
from downpour.learning.auto import look, trainer_of
from tests.learning.tasks.conftest import lab

__all__ = ["lab"]

pytestmark = pytest.mark.usefixtures("lab")


def look_at(asked: dict[str, Any]) -> str:
    """Look as another process would; the launcher tells of one that fails."""
    try:
        return look(asked)
    except DownpourError as error:
        raise LaunchError(str(error)) from error


@pytest.mark.parametrize(
    ("task", "fields", "momentum"),
    [
        ("own_tasks:Plane", {"momentum": 0.7}, 0.7),
        ("own_tasks:Plane", {"optimizer": "adamw"}, None),
        ("own_tasks:Grouped", {}, None),
        ("optimizer_tasks:Lookahead", {"optimizer": "adamw"}, 0.0),
        ("optimizer_tasks:SparseWords", {"task_options": {"kind": "SparseAdam"}}, None),
        ("own_tasks:Unmade", {}, None),
    ],
)
def test_the_optimizer_of_a_task_is_seen(
    task: str, fields: dict[str, Any], momentum: float | None
) -> None:
    """A form of sgd has a momentum; of a task that fails, preparation tells the cause."""
    spec = Spec.make({"task": task, "meet": "auto", **fields})
    seen = LocalOptimizer(momentum=momentum)
    assert trainer_of(spec, 4, apart=False) == trainer_of(spec, 4, ask=look_at) == seen


@pytest.mark.slow
def test_a_separate_process_sees_the_same() -> None:
    """Of a task that fails it sees nothing, and a look that takes too long is refused."""
    spec = Spec.make({"task": "own_tasks:Plane", "meet": "auto", "momentum": 0.7})
    assert trainer_of(spec, 4) == LocalOptimizer(momentum=0.7)
    gone = spec.replace(task="own_tasks:Unmade")
    assert trainer_of(gone, 4) == LocalOptimizer(momentum=None)
    with pytest.raises(SpecError, match="the optimizer of own_tasks:Plane could not be seen"):
        trainer_of(spec, 4, patience_seconds=0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "digits"},
        {"task": "gone:Gone", "shards": 1},
        {"task": "gone:Gone", "optimizer_state": "keep", "outer": "none"},
    ],
)
def test_nobody_looks_where_nothing_depends_on_it(fields: dict[str, Any]) -> None:
    """With one shard, without a task, or if the spec says it all."""
    assert trainer_of(Spec.make(fields), 4) is None
