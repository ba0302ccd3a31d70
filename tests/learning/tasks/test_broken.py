"""Which broken trainings the check at submission tells: all that show in two steps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.tasks import open_data, prepare_data
from downpour.learning.tasks.loaded import load
from downpour.learning.training.trial import check_trains
from tests.conftest import Allow

pytestmark = pytest.mark.usefixtures("lab")

SHARDS = [np.arange(20), np.arange(31, 60)]

TOLD: list[tuple[str, dict[str, Any], str]] = [
    ("own_tasks:Several", {}, "must return a scalar"),
    ("own_tasks:Number", {}, "must return a tensor"),
    ("own_tasks:Detached", {}, "does not depend on any trained parameter"),
    ("own_tasks:Endless", {}, "NaN or infinite on the first batch"),
    ("own_tasks:Failing", {}, "ValueError: not enough values"),
    ("own_tasks:Ragged", {}, "stack expects each tensor to be equal size"),
    ("own_tasks:Worded", {}, "must return numbers"),
    ("own_tasks:Forgetful", {}, "leaves out the parameter"),
    ("own_tasks:Remembering", {}, "other workers can only continue with tensors"),
    ("own_tasks:Shifting", {}, "differs on a second read"),
    ("broken_tasks:Spoilt", {"learning_rate": 1e38}, "too large"),
    ("broken_tasks:Restless", {}, "gives different bytes in two trainings"),
    ("broken_tasks:Timed", {}, "gives different bytes in two trainings"),
    ("broken_tasks:Counting", {}, r"once it was handed over \(calls changes\)"),
    ("broken_tasks:Hiding", {}, r"once it was handed over \(mean changes\)"),
    ("broken_tasks:Viewing", {}, "view size is not compatible"),
    ("broken_tasks:Normal", {"batch_size": 1}, "Expected more than 1 value per channel"),
    ("broken_tasks:Sparse", {}, "edges is sparse"),
    ("broken_tasks:Nothing", {}, "must return a torch.nn.Module"),
    ("broken_tasks:Unnamed", {}, "has nothing to train"),
    ("broken_tasks:Wide", {}, "out of bounds"),
    ("broken_tasks:Leaving", {}, "SystemExit: no more"),
    (
        "broken_tasks:Boundless",
        {},
        "has 4611686018427387904 examples; at most 2147483647 are possible",
    ),
    ("broken_tasks:Overflowing", {}, "must return numbers, but returned 1000000000"),
    ("broken_tasks:Reserved", {}, "must not be called __metadata__"),
    ("broken_tasks:Meddling", {}, r"must leave the network unchanged, but changes first.weight"),
    ("broken_tasks:Talkative", {}, "must return at most 1000 numbers, not 20001"),
    ("broken_tasks:Streamed", {}, "by index, not a Stream: record a stream to"),
    ("broken_tasks:Early", {}, r"no attribute 'accuracy' \(broken_tasks.py:\d+ in metrics\)"),
]
# What shows only later, elsewhere, or in what the first batches do not hold.
NOT_TOLD = ["FailsLater", "Diverges", "Elsewhere", "RareExample", "Growing"]


@pytest.fixture(autouse=True)
def _allowed(lab: None, allowing: Allow) -> None:
    """The module of these tasks lies beside `own_tasks`."""
    del lab
    allowing(Path(__file__).parent, "broken_tasks")


def tried(root: Path, name: str, fields: dict[str, Any]) -> None:
    """Do what a manager does at submission."""
    spec = Spec.make({"task": name, "batch_size": 8, **fields})
    task = load(spec, open_data(spec, root, prepare_data(spec, root)))
    check_trains(task, SHARDS)


@pytest.mark.parametrize(("name", "fields", "why"), TOLD, ids=[one[0] for one in TOLD])
def test_a_broken_training_is_refused(
    tmp_path: Path,
    name: str,
    fields: dict[str, Any],
    why: str,
) -> None:
    """In one line, before a worker has a shard."""
    with pytest.raises(SpecError, match=why) as refusal:
        tried(tmp_path, name, fields)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", NOT_TOLD)
def test_an_unseen_defect_passes(tmp_path: Path, name: str) -> None:
    """Two steps do not show it; the attempt fails later, or a round comes out otherwise."""
    tried(tmp_path, f"broken_tasks:{name}", {})


def test_an_interrupt_that_a_task_raises_itself_is_told(tmp_path: Path) -> None:
    """Ctrl-C reaches the main thread alone, and a manager tries tasks in another one."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(SpecError, match="KeyboardInterrupt"):
        pool.submit(tried, tmp_path, "broken_tasks:Interrupting", {}).result()


@pytest.mark.skipif(psutil.virtual_memory().available > 40e9, reason="there is room for them")
def test_more_examples_than_memory_can_divide_are_refused(tmp_path: Path) -> None:
    """Before anything is divided, which would end the manager."""
    fields = {"train_limit": 2**31 - 1, "test_limit": 10}
    with pytest.raises(SpecError, match=r"train_limit = 2147483647: dividing .* needs 42.9 GB of"):
        tried(tmp_path, "broken_tasks:Boundless", fields)


@pytest.mark.slow
def test_a_test_loss_that_is_infinite_for_a_while_ends_no_training(tmp_path: Path) -> None:
    """Those epochs have none, and another epoch's model is the best."""
    spec = {"task": "broken_tasks:Overshooting", "shards": 2, "epochs": 3, "batch_size": 8}
    spec |= {"keep_best": "max:score"}
    result = downpour.run(spec, workers=1, shared=tmp_path, on="inline", progress=False)
    assert [epoch.test_loss is None for epoch in result.epochs] == [False, True, True]
    assert result.best is not None
    assert result.best.epoch == 1
    json.loads(result.to_json(), parse_constant=pytest.fail)
