"""A Trainer of transformers trains as Trainer.train() does, or is refused in one line."""

import sys
from pathlib import Path
from typing import Any

import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.learning.training.evaluation import evaluate
from tests.conftest import Allow
from tests.learning.training.conftest import same_bytes

from .porting import begun, loaded, spec_of, trained, tried

pytest.importorskip("transformers", reason="needs transformers: the extra lora")
pytest.importorskip("accelerate", reason="needs accelerate: the extra lora")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def lab(allowing: Allow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The module can be imported, and a spec may name what it has."""
    allowing(Path(__file__).parent, "trainers")
    monkeypatch.chdir(tmp_path)  # where a Trainer makes its folder


def by_transformers(name: str, start: Any) -> tuple[Any, list[float]]:
    """Train with Trainer.train(); returns the Trainer, and the loss of each optimizer step."""
    trainer = getattr(sys.modules["trainers"], name)()
    trainer.model.load_state_dict(start)
    losses: list[float] = []
    step, waiting = trainer.training_step, []

    def noted(*given: Any, **named: Any) -> Any:
        loss = step(*given, **named)
        waiting.append(loss.item())
        if len(waiting) == trainer.current_gradient_accumulation_steps:
            losses.append(sum(waiting))
            waiting.clear()
        return loss

    trainer.training_step = noted
    trainer.train()
    return trainer, losses


@pytest.mark.parametrize("name", ["plain", "tuned", "own_loss"])
def test_transformers_gives_the_same_losses_and_metrics(tmp_path: Path, name: str) -> None:
    """To six digits in every step: loss, schedule, decay groups, accumulation and clipping."""
    spec = spec_of(f"trainers:{name}")
    assert spec.epochs == 2
    task = loaded(spec, tmp_path)
    model = task.network()
    trainer, losses = by_transformers(name, model.state_dict())
    assert trained(task, model) == pytest.approx(losses, rel=1e-6)
    found, known = evaluate(model, task), trainer.evaluate()
    assert found.loss == pytest.approx(known["eval_loss"], rel=1e-5)
    assert found.metrics["next_token"] == pytest.approx(known["eval_next_token"])


def test_the_arguments_say_what_the_spec_does_not() -> None:
    """A field that the spec names stays as it is."""
    tuned = spec_of("trainers:tuned")
    assert (tuned.batch_size, tuned.accumulate, tuned.clip_norm) == (12, 3, 0.3)
    assert (tuned.order, tuned.last_batch, tuned.seed) == ("given", "rest", 42)
    shuffled = spec_of("trainers:shuffled", epochs=5, batch_size=32)
    assert (shuffled.epochs, shuffled.batch_size, shuffled.evaluate_batch) == (5, 32, 5)
    assert (shuffled.order, shuffled.precision) == ("auto", "bfloat16")
    assert (shuffled.clip_norm, shuffled.keep_best) == (None, "next_token")
    assert spec_of("trainers:own_loss").last_batch == "drop"


@pytest.mark.parametrize("name", ["tuned", "trainer"])
def test_a_trainer_passes_the_trial_and_goes_on_elsewhere(tmp_path: Path, name: str) -> None:
    """A function that builds it, or a variable; after a step of the second epoch."""
    spec = spec_of(f"trainers:{name}")
    task = loaded(spec, tmp_path)
    tried(task)
    straight, first = (begun(task, task.network(), 1) for _ in range(2))
    first.advance(2)
    there = loaded(spec, tmp_path)
    second = begun(there, there.network(), 1)
    second.restore({**first.snapshot()})
    for one in (straight, second):
        one.advance(one.steps_total)
    assert same_bytes(second.snapshot(), straight.snapshot())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("odd_steps", r"max_steps=7 is 0.7 epochs of 10 steps: Downpour trains whole epochs"),
        ("half_epoch", r"num_train_epochs is 2.5 epochs of 10 steps"),
        ("early", r"leave out EarlyStoppingCallback: the spec has stop_after"),
        ("own_callback", r"leave out Ending: Downpour calls no callbacks \(trainers.py:\d+ in End"),
        ("plateau", r"ReduceLROnPlateau sets the rate by results"),
        ("own_optimizer", r"leave out optimizers=, because each worker makes its own"),
        ("untested", r"needs an eval_dataset, and one alone"),
        ("streaming", r"training data have no index, because a Stream streams"),
        ("neftune", r"its neftune_noise_alpha must be None"),
    ],
)
def test_what_cannot_be_said_is_refused_in_one_line(tmp_path: Path, name: str, line: str) -> None:
    """The line says what to do instead."""
    with pytest.raises(SpecError, match=line) as caught:
        tried(loaded(spec_of(f"trainers:{name}"), tmp_path))
    assert "\n" not in str(caught.value)


def test_from_trainer_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the module that has it; a script is allowed to name its own."""
    loaded(spec_of("trainers:trainer"), tmp_path)
    trainers: Any = sys.modules["trainers"]
    spec = downpour.from_trainer(trainers.trainer, shards=3)
    assert (spec.task, spec.shards, spec.batch_size) == ("trainers:trainer", 3, 4)
    with pytest.raises(SpecError, match=r"variable of the script, outside of functions"):
        downpour.from_trainer(trainers.build())
    with pytest.raises(SpecError, match=r"must be a transformers.Trainer"):
        downpour.from_trainer(3)
    monkeypatch.setattr(trainers.__spec__, "_initializing", True, raising=False)
    with pytest.raises(SpecError, match=r'put that below `if __name__ == "__main__":`'):
        downpour.from_trainer(trainers.trainer)
    monkeypatch.delitem(sys.modules, "trainers")
    monkeypatch.setitem(sys.modules, "__main__", trainers)
    monkeypatch.setattr(trainers, "__spec__", None)
    monkeypatch.setattr(trainers, "__file__", str(tmp_path / "train.py"))
    assert downpour.from_trainer(trainers.trainer).task == "train:trainer"
