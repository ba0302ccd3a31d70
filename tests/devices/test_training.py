"""On an accelerator a training repeats its bytes, stops after any step, and goes on elsewhere."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import Tensor, nn

from downpour.learning import accelerators
from downpour.learning.models import NETWORKS
from downpour.learning.numerics import numeric_class, seeded
from downpour.learning.tasks.loaded import load
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.optimizers import OPTIMIZERS
from downpour.learning.training.trial import check_trains
from tests.learning.training.conftest import with_network

from .conftest import Bench, finished, same

TORCHVISION = "resnet18", "mobilenet_v3_small"
"""Their batch normalization has running means, which are part of the model."""
LAYOUTS = [
    {"precision": precision, "channels_last": channels_last}
    for precision in ("float32", "bfloat16")
    for channels_last in (True, False)
]
IN_PARTS = {"flip": True, "accumulate": 4, "clip_norm": 1.0}
REPEATED: list[dict[str, Any]] = [
    *(
        {"model": model, "optimizer": optimizer, "momentum": 0.9, "weight_decay": 0.01}
        for model, optimizer in product(NETWORKS, OPTIMIZERS)
    ),
    *({"model": model, "optimizer": "adam", **one} for model, one in product(NETWORKS, LAYOUTS)),
    *(
        {"model": model, **IN_PARTS, **one}
        for model, one in product(["mnist-cnn", "conv-lstm"], LAYOUTS)
    ),
    *({"model": model, "channels_last": False} for model in TORCHVISION),
]


@pytest.mark.parametrize("fields", REPEATED, ids=lambda fields: "-".join(map(str, fields.values())))
def test_a_training_repeats_its_bytes(bench: Bench, fields: dict[str, Any]) -> None:
    """Twice, and where it keeps nothing on the device: it comes back from the host as it was."""
    if fields["model"] in TORCHVISION:
        pytest.importorskip("torchvision", reason="torchvision is not installed")
    one, other, spilled = (
        finished(bench.training(fields, spills=spills)) for spills in (False, False, True)
    )
    assert one.steps_done == 3
    assert math.isfinite(one.mean_loss)
    assert one._loaded.repeats
    assert same(one, other)
    assert same(one, spilled)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mnist-cnn", "conv-lstm"])
def test_a_snapshot_after_any_step_goes_on_with_the_same_bytes(
    bench: Bench, model: str, optimizer: str
) -> None:
    """Dropout's draws and the optimizer's state survive the way through a file to another one."""
    fields = {"model": model, "optimizer": optimizer, "momentum": 0.9, "channels_last": True}
    whole = finished(bench.training(fields))
    for step in range(whole.steps_total + 1):
        first = bench.training(fields)
        first.advance(step)
        file = safetensors.numpy.save(first.snapshot())
        accelerators.module_of(bench.device).manual_seed(step)
        second = bench.training(fields)
        second.restore(safetensors.numpy.load(file))
        assert same(finished(second), whole)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_snapshot_goes_on_on_the_processor_and_comes_back(bench: Bench, optimizer: str) -> None:
    """Where workers of several kinds share an experiment; the bytes are then no one's."""
    fields: dict[str, Any] = {"model": "digits-cnn", "optimizer": optimizer, "momentum": 0.9}
    fields |= {"learning_rate": 1e-3}
    alone = finished(bench.training(fields))
    here = bench.training(fields)
    here.advance(1)
    on_cpu = bench.training({**fields, "device": "cpu"})
    on_cpu.restore(here.snapshot())
    on_cpu.advance(1)
    back = bench.training(fields)
    back.restore(on_cpu.snapshot())
    finished(back)
    assert back.steps_done == alone.steps_done
    assert back.mean_loss == pytest.approx(alone.mean_loss, rel=0.05)
    assert back.optimizer_state().keys() == alone.optimizer_state().keys()


@pytest.mark.parametrize("model", ["mlp", "digits-cnn"])
def test_an_accelerator_computes_what_the_processor_does(bench: Bench, model: str) -> None:
    """Nearly: in other kernels, and in another order; without dropout, whose draws are its own."""
    there, here = (
        finished(bench.training({"model": model, "device": device}))
        for device in (bench.device, "cpu")
    )
    assert there.mean_loss == pytest.approx(here.mean_loss, rel=0.02)
    for name, value in here.parameters().items():
        np.testing.assert_allclose(there.parameters()[name], value, atol=5e-3)


def test_parts_of_a_batch_make_the_step_of_the_whole(bench: Bench) -> None:
    """But for rounding."""
    whole, parts = (finished(bench.training({"model": "mlp", "accumulate": n})) for n in (1, 4))
    for name, value in whole.parameters().items():
        np.testing.assert_allclose(parts.parameters()[name], value, atol=1e-4)


def test_training_leaves_the_generators_and_settings_of_the_process(bench: Bench) -> None:
    """Those of the device as well: a user's process draws on as if nothing had been."""
    module = accelerators.module_of(bench.device)
    torch.zeros(1, device=bench.device)
    before, mode = module.get_rng_state(), torch.get_deterministic_debug_mode()
    training = bench.training({"model": "mnist-cnn"})
    finished(training)
    with seeded(7):
        torch.rand(3, device=bench.device)
    assert torch.equal(module.get_rng_state(), before)
    assert torch.get_deterministic_debug_mode() == mode


def test_a_seed_fixes_the_draws_of_an_accelerator(bench: Bench) -> None:
    """As those of the processor."""
    drawn = []
    for _ in range(2):
        with seeded(7):
            drawn.append(torch.rand(3, device=bench.device).tolist())
    assert drawn[0] == drawn[1]


def test_a_trial_and_an_evaluation_take_place_on_the_accelerator(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The trial finds that bytes repeat; the evaluation agrees with the processor's."""
    spec = bench.spec({"model": "mnist-cnn", "shards": 1})
    loaded = load(spec, bench.dataset())
    cost = check_trains(loaded, [np.arange(96)])
    assert cost is not None
    assert cost.memory_bytes > 0
    assert "same bytes" not in caplog.text
    network = loaded.network()
    there = evaluate(network, loaded)
    on_cpu = load(spec.replace(device="cpu"), bench.dataset())
    here = evaluate(on_cpu.network(), on_cpu)
    assert next(network.parameters()).device.type == torch.device(bench.device).type
    assert there.loss == pytest.approx(here.loss, rel=0.01)


def test_a_numeric_class_names_the_card_and_no_number(bench: Bench) -> None:
    """Equal cards are of one class, and the processor's is another one."""
    its = numeric_class(bench.device)
    assert its.device == bench.device
    assert its != numeric_class("cpu")
    assert str(its) == str(numeric_class(bench.device))
    if bench.device == "cuda":
        assert torch.cuda.get_device_name(0) in its.instruction_set
        assert numeric_class("cuda:0") == its


class Attention(nn.Module):
    """Attention over the rows of an image, long enough that sums are cut among many threads."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(40, 64)
        self.attention = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)
        self.head = nn.Linear(64, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs [b, 4] for images [b, 1, 40, 40]."""
        rows = self.rows(images.flatten(1, 2)).repeat(1, 16, 1)
        seen, _ = self.attention(rows, rows, rows, need_weights=False)
        output: Tensor = self.head(seen.mean(1))
        return output


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_attention_repeats_its_bytes(
    bench: Bench, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch's fastest kernels of it do not, unless all operations must."""
    fields = {"model": "mlp", "precision": precision, "channels_last": False}
    made = []
    for spills in (False, False, True):
        loaded = with_network(bench.spec(fields), bench.dataset(), Attention)
        task = LocalTask(indices=np.arange(96), round=0, shard=0)
        made.append(finished(ShardTraining(loaded, loaded.network(), task, spills=spills)))
        assert loaded.repeats
    assert same(made[0], made[1])
    assert same(made[0], made[2])
    assert "other bytes" not in caplog.text


def test_an_operation_that_cannot_repeat_is_trained_and_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for an experiment; `repeatable = false` accepts it without a word."""
    if bench.device != "cuda":
        pytest.skip("it is one of CUDA's")

    def network() -> nn.Module:
        pool = nn.FractionalMaxPool2d(2, output_size=20)
        return nn.Sequential(nn.Conv2d(1, 1, 1), pool, nn.Flatten(), nn.Linear(400, 4))

    for repeatable, told in ((False, 0), (True, 1)):
        fields = {"model": "mlp", "channels_last": False, "repeatable": repeatable}
        loaded = with_network(bench.spec(fields), bench.dataset(), network)
        for round_ in (0, 1):
            task = LocalTask(indices=np.arange(96), round=round_, shard=0)
            training = finished(ShardTraining(loaded, loaded.network(), task))
            assert training.steps_done == 3
            assert math.isfinite(training.mean_loss)
        assert (
            caplog.text.count("may give different bytes each time: fractional_max_pool2d") == told
        )
        assert loaded.repeats is not repeatable


USERS = """
import torch
from torch import nn
import downpour


class Words(downpour.Task):
    '''Embedded words, whose places are drawn; every part of it is trained on the device.'''

    def examples(self, part):
        generator = torch.Generator().manual_seed(1)
        words = torch.randint(0, 50, (200, 12), generator=generator)
        return [(one, one.sum() % 2) for one in words]

    def model(self):
        return Net()

    def loss(self, model, batch):
        words, labels = batch
        return nn.functional.cross_entropy(model(words), labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, words):
        noise = torch.rand(words.shape, device=words.device)[..., None]
        return self.head(self.encoder(self.embedding(words) + noise).mean(1))
"""


def test_a_users_task_draws_on_the_device_and_repeats(
    device: str, tmp_path: Path, allowing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Embeddings, attention, dropout and noise of its own: the trial finds the same bytes."""
    from downpour.core.spec import Spec
    from downpour.learning.tasks.agreement import open_data, prepare_data

    (tmp_path / "words_on_device.py").write_text(USERS)
    allowing(tmp_path, "words_on_device")
    spec = Spec.make({"task": "words_on_device:Words", "device": device, "shards": 1})
    (tmp_path / "data").mkdir()
    key = prepare_data(spec, tmp_path / "data", None)
    loaded = load(spec, open_data(spec, tmp_path / "data", key))
    assert check_trains(loaded, [np.arange(100)]) is not None
    assert "same bytes" not in caplog.text
