"""The small datasets of the tests of training, and tasks as users write them."""

from pathlib import Path
from typing import Any

import pytest

from downpour.core.spec import Spec
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import LoadedTask, load
from tests.conftest import Allow
from tests.learning.training.conftest import dataset, numbers

__all__ = ["dataset", "lab", "loaded", "numbers"]


@pytest.fixture
def lab(allowing: Allow) -> None:
    """The modules of tasks can be imported, and a spec may name their classes."""
    modules = ("own_tasks", "optimizer_tasks", "broken_tasks", "hostile_tasks")
    allowing(Path(__file__).parent, *modules)


def loaded(root: Path, name: str, **fields: Any) -> LoadedTask:
    """Return a task, by default of the module `own_tasks`, loaded as a worker does."""
    task = name if ":" in name else f"own_tasks:{name}"
    spec = Spec.make({"task": task, "batch_size": 16, **fields})
    return load(spec, open_data(spec, root, prepare_data(spec, root)))
