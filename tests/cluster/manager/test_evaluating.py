"""The manager evaluates where it can: a fake accelerator lacks the memory for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from downpour.base.devices import Devices
from downpour.base.errors import OutOfMemory
from downpour.base.states import Evaluation
from downpour.cluster.manager import global_model
from downpour.cluster.manager.global_model import GlobalModel
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.evaluation import evaluate_on


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
