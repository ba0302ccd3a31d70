"""A LightningModule trains as lightning.Trainer trains it, or is refused in one line."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.training.evaluation import evaluate
from tests.conftest import Allow
from tests.learning.training.conftest import same_bytes

from . import porting
from .porting import begun, loaded, trained, tried

lightning = pytest.importorskip("lightning", reason="needs lightning: pip install lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own

EPOCHS = 2


@pytest.fixture(autouse=True)
def lab(allowing: Allow) -> None:
    """The modules can be imported, and a spec may name them."""
    allowing(Path(__file__).parent, "lightning_modules")


def spec_of(name: str, **fields: Any) -> Spec:
    """Return the spec of one of the modules."""
    return porting.spec_of(f"lightning_modules:{name}", **{"epochs": EPOCHS, **fields})


def by_lightning(module: Any, data: Any, folder: Path, **options: Any) -> tuple[Any, list[float]]:
    """Train with lightning.Trainer; returns its measurements, and each step's loss."""
    losses: list[float] = []

    def keep(trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        del trainer, module
        losses.append(outputs["loss"].item())

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[lightning.pytorch.callbacks.LambdaCallback(on_train_batch_end=keep)],
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **quiet,
        **options,
    )
    trainer.fit(module, data)
    return trainer.callback_metrics, losses


@pytest.mark.parametrize(
    ("name", "how", "fields", "options"),
    [
        ("Net", "adamw", {}, {}),
        ("Net", "one cycle", {"clip_norm": 0.5}, {"gradient_clip_val": 0.5}),
        ("Net", "lambda", {}, {}),
        ("Net", "epochs", {}, {}),
        ("Own", "every third", {}, {}),
    ],
)
def test_lightning_gives_the_same_losses_metrics_and_parameters(
    tmp_path: Path, name: str, how: str, fields: Any, options: Any
) -> None:
    """To six digits in every step: sizes of batches, their order, optimizer, schedule, clipping."""
    spec = spec_of(name, task_options={"how": how}, **fields)
    task = loaded(spec, tmp_path)
    modules = sys.modules["lightning_modules"]
    model: Any = task.network()
    module = getattr(modules, name)(how)
    module.load_state_dict(model.state_dict())
    data = modules.Points() if name == "Net" else None
    metrics, losses = by_lightning(module, data, tmp_path, **options)
    assert trained(task, model) == pytest.approx(losses, rel=1e-6)
    assert model.seen == module.seen
    for key, value in module.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-5, atol=1e-7)
    found = evaluate(model, task)
    assert found.loss == pytest.approx(metrics["val_loss"].item(), rel=1e-6)
    for key in ("f1", "first", "epochs"):
        assert found.metrics[key] == pytest.approx(metrics[key].item(), rel=1e-6), key


def test_the_loaders_say_what_the_spec_does_not(tmp_path: Path) -> None:
    """A field that the spec names stays as it is, also if it has its default."""
    said = spec_of("Net")
    assert (said.batch_size, said.last_batch, said.order) == (8, "rest", "given")
    assert (said.evaluate_batch, said.epochs) == (6, EPOCHS)
    assert spec_of("Net", batch_size=32).batch_size == 32
    assert spec_of("Net", task_options={"batch_size": 5, "width": 3}).batch_size == 5
    own = spec_of("Own")
    assert (own.batch_size, own.last_batch) == (8, "drop")
    pair = spec_of("pair", task_options={"how": "lambda"})
    assert (pair.batch_size, pair.order) == (16, "auto")
    batch = loaded(own, tmp_path).batch("train", np.arange(3))
    examples = loaded(said, tmp_path).batch("train", np.arange(3))
    assert torch.equal(batch[0], 2 * examples[0])


def test_the_loss_may_be_returned(tmp_path: Path) -> None:
    """It is that of the module that logs it as val_loss."""
    measured = []
    for name in ("Returning", "Own"):
        task = loaded(spec_of(name), tmp_path)
        measured.append(evaluate(task.network(), task).loss)
    assert measured[0] == measured[1]


@pytest.mark.parametrize("how", ["adamw", "one cycle", "epochs"])
def test_a_module_passes_the_trial_and_goes_on_elsewhere(tmp_path: Path, how: str) -> None:
    """After any step of the second epoch, in a process that has taken none before."""
    spec = spec_of("Net", task_options={"how": how})
    task = loaded(spec, tmp_path)
    tried(task)
    straight = begun(task, task.network(), 1)
    for steps in range(1, straight.steps_total):
        first = begun(loaded(spec, tmp_path), task.network(), 1)
        first.advance(steps)
        there = loaded(spec, tmp_path)
        second = begun(there, there.network(), 1)
        second.restore({**first.snapshot()})
        second.advance(second.steps_total)
        straight.advance(straight.steps_total)
        assert same_bytes(second.snapshot(), straight.snapshot())


@pytest.mark.parametrize(
    ("name", "fields", "line"),
    [
        ("Net", {"task_options": {"how": "two"}}, r"2 optimizers, but one is needed; with several"),
        ("Net", {"task_options": {"how": "none"}}, r"0 optimizers, but one .*\(lightning_modules"),
        ("Net", {"task_options": {"how": "plateau"}}, r"ReduceLROnPlateau sets the rate by"),
        ("Net", {"task_options": {"how": "schedulers"}}, r"let a SequentialLR or ChainedScheduler"),
        ("Net", {"task_options": {"hov": "two"}}, r"lightning_modules:Net takes no hov"),
        (
            "Net",
            {"task_options": {"how": "epochs"}, "schedule": "cosine"},
            r"has its own scheduler",
        ),
        ("Manual", {}, r"let the step\(\) of a downpour.Task do what training_step does"),
        ("Hooked", {}, r"does not call on_after_backward\(\) \(lightning_modules.py:\d+ in on_"),
        ("Streaming", {}, r"training data have no index, because a Stream streams: record it"),
        ("Weighted", {}, r"have a WeightedRandomSampler: Downpour orders the examples itself"),
        ("Several", {}, r"evaluation data must be one DataLoader, not a list"),
        ("Summing", {}, r"self.log\('wrong', reduce_fx='sum'\): only means are known"),
        ("Lossless", {}, r"training_step\(\) must return a loss, not NoneType \(lightning_mod"),
        (
            "nothing",
            {},
            r"must be a class that inherits from downpour.Task or LightningModule, or a funct",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_in_one_line(
    tmp_path: Path, name: str, fields: Any, line: str
) -> None:
    """The line says what to do instead, and names the place."""
    with pytest.raises(SpecError, match=line) as caught:
        tried(loaded(spec_of(name, **fields), tmp_path))
    assert "\n" not in str(caught.value)
