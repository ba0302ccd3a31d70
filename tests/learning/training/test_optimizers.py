"""Optimizers: what their steps are, and their learning rate."""

import copy
import math
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from downpour.base.errors import FileCorrupt, SpecError
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks import Position, Task
from downpour.learning.tasks.agreement import TaskData
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.loop import ShardTraining
from downpour.learning.training.optimizers import (
    OPTIMIZERS,
    Optimizers,
    rate_factor,
    unwrapped,
)

from .conftest import BASE, same_bytes, started

FACTS = DatasetFacts(
    train_samples=1, test_samples=1, sample_shape=(), classes=0, targets_per_sample=0
)


def optimizers_of(model: nn.Module, spec: Spec, task: Task | None = None) -> Optimizers:
    """Return the optimizers of a task, by default one that leaves all to the spec."""
    data = TaskData(facts=FACTS, labels=None, sketches={})
    return Optimizers(LoadedTask(spec.replace(device="cpu"), task or Task(), data), model)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer | Optimizers) -> None:
    """Step on the gradient of the parameters' squares."""
    optimizer.zero_grad()
    sum((value**2).sum() for value in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "reference"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_they_are_the_optimizers_of_their_names(
    name: str, reference: type[torch.optim.Optimizer]
) -> None:
    """Three steps agree with torch's plain implementation."""
    spec = Spec.make({"optimizer": name, "learning_rate": 0.1, "momentum": 0.0})
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    plain = reference(theirs.parameters(), lr=0.1, weight_decay=0.0)  # type: ignore[call-arg]
    fused = optimizers_of(ours, spec)
    for _ in range(3):
        one_step(ours, fused)
        one_step(theirs, plain)
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-6)


def test_without_momentum_there_is_no_state() -> None:
    """Plain gradient descent remembers nothing, so no file is needed."""
    model = nn.Linear(3, 2)
    optimizer = optimizers_of(model, Spec.make({"momentum": 0.0}))
    one_step(model, optimizer)
    assert optimizer.arrays() == {}


@pytest.mark.parametrize("name", ["weight/momentum_buffer", "elsewhere/momentum_buffer", "step"])
def test_a_state_of_another_network_is_refused(name: str) -> None:
    """A wrong shape or an unknown parameter."""
    model = nn.Linear(3, 2)
    optimizer = optimizers_of(model, Spec.make({"momentum": 0.9}))
    with pytest.raises(FileCorrupt):
        optimizer.load({name: np.zeros(7, np.float32)})


class Branches(nn.Module):
    """Two layers, of which the second is used from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        early: Tensor = self.early(x)
        return early + self.late(x) if both else early


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_may_get_its_first_gradient_late(name: str) -> None:
    """As with stochastic depth or experts; the numbers are those of torch's plain optimizer."""
    ours, theirs = Branches(), Branches()
    theirs.load_state_dict(ours.state_dict())
    spec = Spec.make({"optimizer": name, "learning_rate": 0.1})
    fused = optimizers_of(ours, spec)
    plain = optimizers_of(theirs, spec).by_name["optimizer"]
    plain.state.clear()
    plain.param_groups[0]["fused"] = False
    for both in (False, True, True):
        both_worlds: tuple[tuple[Branches, Any], ...] = ((ours, fused), (theirs, plain))
        for model, optimizer in both_worlds:
            optimizer.zero_grad()
            model(torch.ones(2, 3), both=both).sum().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}

TRAINS = """
import sys
from pathlib import Path
import numpy as np
from downpour.learning.datasets import open_prepared, prepare
from downpour.core.spec import Spec
from downpour.learning.tasks.loaded import load
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining

spec, root = Spec(dataset="digits", model="mlp", clip_norm=1.0), Path(sys.argv[1])
loaded = load(spec, open_prepared(root, prepare(spec, root, None)))
network = loaded.network()
ShardTraining(loaded, network, LocalTask(indices=np.arange(64), round=0, shard=0)).advance(2)
evaluate(network, loaded)
assert "torch" in sys.modules
print("torch._dynamo" in sys.modules)
"""


def stepped(kind: Any, options: dict[str, Any]) -> list[Tensor]:
    """The parameters of a small network after five steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = kind(network.parameters(), fused=True, **options)
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in network.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_they_take_torchs_own_steps(kind: str) -> None:
    """To the bit, and nothing of it is recorded for a gradient."""
    theirs, options = KINDS[kind]
    for own, torchs in zip(
        stepped(unwrapped(theirs), options), stepped(theirs, options), strict=True
    ):
        assert own.equal(torchs)
        assert own.grad_fn is None


@pytest.mark.slow
def test_training_and_evaluation_do_without_torchs_compiler(tmp_path: Any) -> None:
    """Its import takes as long as that of torch, and a worker would wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


DATA = TaskData(
    facts=DatasetFacts(train_samples=1, test_samples=1, sample_shape=(), classes=0),
    labels=None,
    sketches={},
)


def factors(rounds: int = 2, steps: int = 5, **fields: Any) -> list[float]:
    """Return the factors of all steps of a training."""
    task = LoadedTask(Spec.make({"epochs": rounds, **fields}), Task(), DATA)
    return [
        rate_factor(task, Position(epoch=one, epochs=rounds, step=step, steps=steps))
        for one in range(rounds)
        for step in range(steps)
    ]


def test_by_default_it_stays() -> None:
    """One for every step."""
    assert factors() == [1.0] * 10


def test_a_cosine_is_torch_s() -> None:
    """As CosineAnnealingLR with as many steps as the training has, down to a tenth."""
    import torch

    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0.1)
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors(schedule="cosine", final_rate=0.1) == pytest.approx(expected)


def test_a_rate_times_the_shards_is_warmed_up_to() -> None:
    """From the rate of one shard to that of four, over five of ninety epochs or as asked."""
    scaled = factors(rounds=90, steps=2, scale_rate=True, shards=4)
    assert scaled[:11] == pytest.approx([*(1 + 3 * step / 10 for step in range(10)), 4.0])
    assert set(scaled[10:]) == {4.0}
    assert factors(scale_rate=True, shards=3, warmup=0.4, schedule="linear") == pytest.approx(
        [1.0, 1.5, 2.0, 2.5, *(3 * left / 6 for left in (6, 5, 4, 3, 2, 1))]
    )


def test_warming_up_comes_first() -> None:
    """Four of ten steps rise to the whole rate, and the schedule takes the others."""
    assert factors(warmup=0.4, schedule="linear") == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    )


def test_a_warmup_may_be_said_in_steps() -> None:
    """Four of ten are a share of 0.4; a warm-up may be as long as the training, or longer."""
    shared = factors(rounds=2, steps=5, schedule="linear", warmup=0.4)
    assert factors(rounds=2, steps=5, schedule="linear", warmup=4) == shared
    assert factors(rounds=1, steps=2, schedule="cosine", warmup=2) == [0.5, 1.0]
    assert factors(rounds=1, steps=2, schedule="cosine", warmup=8) == [0.125, 0.25]


def test_steps_fall_by_rounds() -> None:
    """As StepLR, once a number of epochs."""
    found = factors(rounds=5, steps=1, schedule="step", decay=0.5, decay_every=2)
    assert found == [1.0, 1.0, 0.5, 0.5, 0.25]


@given(
    schedule=st.sampled_from(["constant", "cosine", "linear", "step"]),
    warmup=st.floats(0, 0.99) | st.integers(1, 9),
    rounds=st.integers(1, 4),
    steps=st.integers(1, 7),
    least=st.floats(0, 1),
)
def test_a_factor_is_a_share(
    schedule: str, warmup: float, rounds: int, steps: int, least: float
) -> None:
    """Of the learning rate: above 0 but for the end of a fall, and at most 1."""
    fields = {"schedule": schedule, "warmup": warmup, "final_rate": least}
    found = factors(rounds, steps, **fields)
    assert all(0 <= one <= 1 and math.isfinite(one) for one in found)
    assert found[0] > 0


def after(dataset: PreparedDataset, steps: int, **fields: Any) -> ShardTraining:
    """Return a training after some steps, of a network without dropout."""
    training = started(dataset, {"model": "mlp", "momentum": 0.0, **fields})
    training.advance(steps)
    return training


@pytest.mark.parametrize("parts", [2, 3, 16, 50])
def test_a_batch_in_parts_is_the_same_step(dataset: PreparedDataset, parts: int) -> None:
    """The mean gradient and the mean loss are those of the whole batch, but for rounding."""
    whole, cut = after(dataset, 3), after(dataset, 3, accumulate=parts)
    assert cut.mean_loss == pytest.approx(whole.mean_loss, rel=1e-5)
    for name, array in whole.parameters().items():
        assert np.allclose(array, cut.parameters()[name], atol=1e-6)


def test_a_clipped_step_is_no_longer_than_the_limit(dataset: PreparedDataset) -> None:
    """Plain gradient descent moves by the learning rate times the gradient's norm at most."""
    before = after(dataset, 0).parameters()
    clipped = after(dataset, 1, clip_norm=0.01, learning_rate=0.5).parameters()
    moved = [np.square(clipped[name] - array).sum() for name, array in before.items()]
    assert np.sqrt(sum(moved)) == pytest.approx(0.5 * 0.01, rel=1e-3)


def test_float16_scales_the_loss_as_a_plain_loop_does(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps whose gradients overflow are left out; the scale goes on elsewhere with the state."""
    high = partial(torch.amp.GradScaler, init_scale=2.0**22)
    monkeypatch.setattr(torch.amp, "GradScaler", high)
    fields = {"model": "mlp", "precision": "float16", "clip_norm": 0.5, "accumulate": 2}
    training = started(dataset, fields)
    model = copy.deepcopy(training._model)
    batches = [training._batch(step) for step in range(training.steps_total)]
    optimizer = torch.optim.SGD(model.parameters(), BASE["learning_rate"], 0.9, fused=True)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    scaler = torch.amp.GradScaler("cpu")
    task, skipped = training._loaded.task, 0
    for indices in batches:
        optimizer.zero_grad()
        for part in np.array_split(indices, 2):
            with torch.autocast("cpu", torch.float16, cache_enabled=False):
                loss: Any = task.loss(model, training._loaded.batch("train", part))
            scaler.scale(loss * len(part) / len(indices)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    training.advance(2)
    second = started(dataset, fields)
    second.restore(training.snapshot())
    for one in (training, second):
        one.advance(one.steps_total)
    assert same_bytes(training.snapshot(), second.snapshot())
    assert training.optimizer_state()[":scaler"][0] == scaler.get_scale()
    assert 0 < skipped < len(batches)
    for name, value in model.state_dict().items():
        assert np.allclose(training.parameters()[name], value.numpy(), atol=1e-6)


def test_float16_needs_a_loss_that_can_be_scaled(dataset: PreparedDataset) -> None:
    """One process, because its helpers know no scale."""
    with pytest.raises(SpecError, match="needs inside = 'data' with one process"):
        started(dataset, {"precision": "float16", "inside": {"processes": 2}})
