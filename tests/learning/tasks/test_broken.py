"""Tasks that the check at submission refuses; `training/test_trial.py` has broken networks."""

from __future__ import annotations

import json
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

REFUSED = {
    "Unnamed": "has nothing to train",
    "Nothing": r"model\(\) must return a torch.nn.Module",
    # In the main thread, where Ctrl-C must not count as an error of the task.
    "Leaving": r"SystemExit: no more \(broken_tasks.py:\d+ in loss\)",
    "Boundless": "has 4611686018427387904 examples; at most 2147483647 are possible",
    "Overflowing": "must return numbers, but returned 1000000000",
    "Reserved": "must not be called __metadata__",
    "Meddling": "must leave the network unchanged, but changes first.weight",
    "Talkative": "must return at most 1000 numbers, not 20001",
    "Streamed": "by index, not a Stream: record a stream to",
    "Early": r"no attribute 'accuracy' \(broken_tasks.py:\d+ in metrics\)",
}


@pytest.fixture(autouse=True)
def _allowed(lab: None, allowing: Allow) -> None:
    """The module of these tasks lies beside `own_tasks`."""
    del lab
    allowing(Path(__file__).parent, "broken_tasks")


def tried(root: Path, name: str, **fields: Any) -> None:
    """Do what a manager does at submission."""
    spec = Spec.make({"task": f"broken_tasks:{name}", "batch_size": 8, **fields})
    task = load(spec, open_data(spec, root, prepare_data(spec, root)))
    check_trains(task, SHARDS)


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_a_broken_training_is_refused(tmp_path: Path, name: str, why: str) -> None:
    """In one line, before a worker has a shard."""
    with pytest.raises(SpecError, match=why) as refusal:
        tried(tmp_path, name)
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(psutil.virtual_memory().available > 40e9, reason="there is room for them")
def test_more_examples_than_memory_can_divide_are_refused(tmp_path: Path) -> None:
    """Before anything is divided, which would end the manager."""
    with pytest.raises(SpecError, match=r"train_limit = 2147483647: dividing .* needs 42.9 GB of"):
        tried(tmp_path, "Boundless", train_limit=2**31 - 1, test_limit=10)


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
