"""A task that a user brings is trained as it says, or refused in one line."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.tasks import Task
from downpour.learning.training.evaluation import evaluate, evaluate_on
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.optimizers import without_effect
from downpour.learning.training.parameters import frozen_of, load_parameters, parameters_of
from downpour.learning.training.trial import check_trains
from tests.examples.plain import plain_training
from tests.learning.training.conftest import same_bytes

from .conftest import loaded

pytestmark = pytest.mark.usefixtures("lab")

SHARDS = [np.arange(20), np.arange(20, 60)]


def tried(root: Path, name: str, **fields: Any) -> None:
    """Do what a manager does at submission."""
    task = loaded(root, name, **fields)
    task.check_fit(task.network())
    check_trains(task, SHARDS)


def trained(root: Path, name: str, *, cut_at: int | None = None, **fields: Any) -> dict[str, bytes]:
    """Train on a shard, and return its parameters; `cut_at` is the step of a hand-over."""
    task = loaded(root, name, **fields)

    def begun() -> ShardTraining:
        shard = LocalTask(indices=np.arange(60), round=1, shard=0)
        return ShardTraining(task, task.network(), shard)

    training = begun()
    if cut_at is not None:
        training.advance(cut_at)
        first, training = training, begun()
        training.restore(first.snapshot())
    training.advance(training.steps_total)
    return {name: array.tobytes() for name, array in training.parameters().items()}


@pytest.mark.parametrize(
    "name", ["Plane", "Noisy", "Sided", "Grouped", "Iterated", "Detector", "Duel"]
)
def test_a_good_task_passes_the_trial(tmp_path: Path, name: str) -> None:
    """With dropout, augmentation, labels, groups, an optimizer and a step of its own."""
    tried(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(
            (name, {})
            for name in ("Plane", "Noisy", "Grouped", "Duel", "optimizer_tasks:Lookahead")
        ),
        ("Noisy", {"optimizer": "adamw", "schedule": "cosine"}),
    ],
)
def test_a_task_is_handed_over_at_any_step(
    tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    """What another process goes on with comes to the same bytes."""
    whole = trained(tmp_path, name, **fields)
    for step in range(5):
        assert trained(tmp_path, name, cut_at=step, **fields) == whole


@pytest.mark.parametrize("how", ["static", "made"])
def test_methods_may_be_static_of_the_class_or_objects(tmp_path: Path, how: str) -> None:
    """They are bound as the made task binds them; metrics may be numpy's numbers."""
    name, options = "optimizer_tasks:Idioms", {"how": how}
    tried(tmp_path, name, task_options=options)
    task = loaded(tmp_path, name, task_options=options)
    assert evaluate(task.network(), task).metrics == {
        "float": 0.5,
        "int": 3.0,
        "array": 0.25,
        "pair": 0.25,
    }


def test_a_method_that_the_task_makes_is_checked_too(tmp_path: Path) -> None:
    """A function in `self.collate` that takes no examples."""
    with pytest.raises(SpecError, match=r"collate\(\) must take \(self, examples\): too many"):
        tried(tmp_path, "optimizer_tasks:Idioms", task_options={"how": "wrong"})


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", ["SparseAdam", "Adagrad"])
def test_sparse_gradients_are_trained_and_handed_over(tmp_path: Path, kind: str) -> None:
    """By the optimizers that take them; SparseAdam counts steps in whole numbers."""
    options: dict[str, Any] = {"task_options": {"kind": kind}, "clip_norm": 1.0, "accumulate": 2}
    tried(tmp_path, "optimizer_tasks:SparseWords", **options)
    whole = trained(tmp_path, "optimizer_tasks:SparseWords", **options)
    assert trained(tmp_path, "optimizer_tasks:SparseWords", cut_at=2, **options) == whole


@pytest.mark.parametrize(
    "fields", [{}, {"optimizer": "adamw"}, {"task_options": {"kind": "NAdam"}}]
)
def test_sparse_gradients_are_refused_where_the_optimizer_takes_none(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    """The line names the parameter that has them, and what would do."""
    why = "its optimizer takes no sparse gradients, but words.weight has them: use sparse=False"
    with pytest.raises(SpecError, match=why):
        tried(tmp_path, "optimizer_tasks:SparseWords", **fields)


def test_processes_cannot_share_sparse_gradients(tmp_path: Path) -> None:
    """They put dense ones into common memory, so each step would fail in the helper."""
    fields = {"task_options": {"kind": "SparseAdam"}, "inside": {"processes": 2}}
    with pytest.raises(SpecError, match=r"must be 1: the gradients of words.weight are sparse"):
        tried(tmp_path, "optimizer_tasks:SparseWords", **fields)


@pytest.mark.parametrize("cut_at", [0, 2])
def test_rounds_with_an_optimizer_s_counter_come_to_the_bytes_of_a_plain_loop(
    tmp_path: Path, cut_at: int
) -> None:
    """On one shard, undisturbed or handed over in every round, in the middle of a count."""
    task = loaded(tmp_path, "optimizer_tasks:Lookahead", epochs=3, optimizer_state="keep")
    network, state = task.network(), None
    for round_ in range(3):
        place = LocalTask(indices=np.arange(60), round=round_, shard=0)
        training = ShardTraining(task, network, place, optimizer_state=state)
        if cut_at:
            training.advance(cut_at)
            first, network = training, task.network()
            training = ShardTraining(task, network, place)
            training.restore(first.snapshot())
        training.advance(training.steps_total)
        state = training.optimizer_state()
    plain = plain_training(task.task, task.spec).model
    assert same_bytes(parameters_of(network), parameters_of(plain))


def test_a_split_drawn_once_is_the_same_for_all(tmp_path: Path) -> None:
    """Processes that make the task agree about a split at random, and its parts share nothing."""
    one, other = loaded(tmp_path, "Halves"), loaded(tmp_path, "Halves")
    parts = {part: one.examples(part) for part in ("train", "test")}
    numbers = {
        part: {tuple(found[i][0].tolist()) for i in range(30)} for part, found in parts.items()
    }
    assert len(numbers["train"] | numbers["test"]) == 60
    test = other.examples("test")
    assert {tuple(test[i][0].tolist()) for i in range(30)} == numbers["test"]
    assert one.data.labels is not None
    assert one.data.labels.tolist() == [int(parts["train"][i][1][0] > 0) for i in range(30)]


def test_frozen_parameters_are_in_no_update_and_stay(tmp_path: Path) -> None:
    """Neither parameters nor snapshots hold them, and neither training nor a version moves them."""
    task = loaded(tmp_path, "Plane")
    network = task.network()
    first, frozen = parameters_of(network), frozen_of(network)
    assert frozen.keys() == {"0.bias"}
    training = ShardTraining(task, network, LocalTask(indices=np.arange(60), round=0, shard=0))
    training.advance(1)
    assert not any("0.bias" in name for name in training.snapshot())
    training.advance(training.steps_total)
    update = training.parameters()
    assert update.keys() == first.keys()
    assert "0.bias" not in update
    assert not any(update[name].tobytes() == array.tobytes() for name, array in first.items())
    load_parameters(network, update)
    assert frozen_of(network)["0.bias"].tobytes() == frozen["0.bias"].tobytes()


def test_an_evaluation_has_the_task_s_metrics(tmp_path: Path) -> None:
    """A sum and a count are added up over all batches, of which the last is smaller."""
    task = loaded(tmp_path, "Plane")
    network = task.network().eval()
    found = evaluate(network, task)
    points = task.examples("test")
    import torch

    with torch.no_grad():
        x = torch.from_numpy(np.stack([points[i][0] for i in range(60)]))
        y = torch.from_numpy(np.stack([points[i][1] for i in range(60)]))
        error = (network(x) - y).abs().mean().item()
        loss = ((network(x) - y) ** 2).mean().item()
    assert found.metrics == {"error": pytest.approx(error, rel=1e-5)}
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.samples == 60


def test_the_rate_is_the_task_s(tmp_path: Path) -> None:
    """A rate that falls to nothing trains less than one that stays."""
    task = loaded(tmp_path, "Grouped", epochs=1)
    training = ShardTraining(
        task, task.network(), LocalTask(indices=np.arange(60), round=0, shard=0)
    )
    training.advance(3)
    rates = [group["lr"] for group in training._optimizers.by_name["optimizer"].param_groups]
    assert rates == [pytest.approx(1.0 * (1 - 2 / 4)), pytest.approx(0.5 * (1 - 2 / 4))]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Several", r"loss\(\) must return a scalar, .* torch.float32 \[16, 1\]"),
        ("Detached", r"loss\(\) does not depend on any trained parameter"),
        ("Pretending", r"loss\(\) does not depend on any trained parameter"),
        ("Endless", "its loss is NaN or infinite on the first batch"),
        ("Failing", r"in step 1: ValueError: not enough .* \(own_tasks.py:\d+ in loss\)"),
        ("Worded", r"metrics\(\) must return numbers, but returned 'good' for 'grade'"),
        ("Listed", r"metrics\(\) must return numbers, but returned \[16, 1\] for 'error'"),
        ("Forgetful", r"groups\(\) leaves out the parameter 3.bias"),
        ("Double", r"groups\(\) names the parameter 0.weight twice"),
        ("Remembering", "its optimizer keeps seen of 0.weight, a set: other workers can only"),
        (
            "Shadowed",
            "a step changes 0.bias, which requires no gradient, so Downpour sends it only once",
        ),
        ("Scheduled", r"a scheduler sets its learning rate, .* rate\(done\) instead"),
        ("Other", "must be a class that inherits from downpour.Task"),
        ("function", "must be a class that inherits from downpour.Task"),
        ("Lacking", r"lacks examples\(\) and loss\(\)"),
        ("Strange", r"loss\(\) must take \(self, model, batch\)"),
        ("Columns", r'examples\("train"\) must return examples by index, not a tuple'),
        ("Empty", r'examples\("test"\) is empty'),
        ("Unmade", r"cannot be made: FileNotFoundError: points.csv \(own_tasks.py:\d+"),
        ("Mislabeled", r"labels\(\) must return 60 class numbers"),
        ("Shifting", r'example 0 of "train" differs on a second read'),
        ("Ragged", "stack expects each tensor to be equal size"),
        ("Missing", "cannot be imported: AttributeError"),
        ("Overlabeled", r"labels\(\) must return 60 class numbers, .* returned int64 \[120\]"),
        ("Growing", r"change during use: own_tasks:Growing has \d+ train examples here"),
        (
            "optimizer_tasks:Loading",
            "by index, not a DataLoader: return its dataset; batch_size and collate",
        ),
        ("optimizer_tasks:Grouping", "by index, not a set: record a stream to a list"),
        ("EndlessAtTheEnd", "its loss is NaN or infinite on a batch of 4, with which a shard ends"),
        ("Numbered", r"metrics\(\) must return numbers by name, but returned \{1: 1.0\}"),
        ("Foreign", r"trains a parameter that model\(\) lacks: torch.float32 \[3\]"),
        ("Mistyped", "gives 'learning_rate', but the optimizer's options are .* lr,"),
        ("Calling", r"LBFGS calls the loss itself, so the task needs its own step\(\)"),
        ("broken_tasks:Unnamed", "has nothing to train"),
        # In the main thread, where Ctrl-C must not count as an error of the task.
        ("broken_tasks:Leaving", r"SystemExit: no more \(broken_tasks.py:\d+ in loss\)"),
        (
            "broken_tasks:Boundless",
            "has 4611686018427387904 examples; at most 2147483647 are possible",
        ),
        ("broken_tasks:Overflowing", "must return numbers, but returned 1000000000"),
        ("broken_tasks:Reserved", "must not be called __metadata__"),
        ("broken_tasks:Meddling", "must leave the network unchanged, but changes first.weight"),
        ("broken_tasks:Talkative", "must return at most 1000 numbers, not 20001"),
        ("broken_tasks:Streamed", "by index, not a Stream: record a stream to"),
        ("broken_tasks:Early", r"no attribute 'accuracy' \(broken_tasks.py:\d+ in metrics\)"),
    ],
)
def test_a_mistake_in_a_task_is_one_line(tmp_path: Path, name: str, why: str) -> None:
    """Before a worker has heard of it, with the line of the user's file where there is one."""
    with pytest.raises(SpecError, match=why) as refusal:
        tried(tmp_path, name, last_batch="rest")
    assert refusal.value.field == "task"
    assert str(refusal.value.value).endswith(f":{name.rpartition(':')[2]}")
    said = str(refusal.value)
    assert "\n" not in said
    has_no_line = {"Missing", "Ragged"}
    assert bool(re.search(r" \(\w+_tasks.py:\d+ in \w+\)$", said)) == (name not in has_no_line)


@pytest.mark.skipif(psutil.virtual_memory().available > 40e9, reason="there is room for them")
def test_more_examples_than_memory_can_divide_are_refused(tmp_path: Path) -> None:
    """Before anything is divided, which would end the manager."""
    with pytest.raises(SpecError, match=r"train_limit = 2147483647: dividing .* needs 42.9 GB of"):
        tried(tmp_path, "broken_tasks:Boundless", train_limit=2**31 - 1, test_limit=10)


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


def test_the_trial_asks_for_no_rate_beyond_the_end(tmp_path: Path) -> None:
    """The share that is done stays below 1, with one epoch too."""
    tried(tmp_path, "UpToTheEnd", epochs=1)


def test_the_best_is_kept_by_what_is_measured_or_not_at_all(tmp_path: Path) -> None:
    """The trial evaluates, too, and so knows the names."""
    tried(tmp_path, "Plane", keep_best="error")
    with pytest.raises(
        SpecError, match=r"^keep_best = 'accuracy': no such metric; .* error, loss$"
    ):
        tried(tmp_path, "Plane", keep_best="accuracy")


@pytest.mark.parametrize("name", ["Plane", "Noisy"])
def test_a_step_is_the_same_whether_it_opens_the_examples_or_not(tmp_path: Path, name: str) -> None:
    """They are looked at where they are opened, which draws what a step would draw."""
    shard = LocalTask(indices=np.arange(60), round=0, shard=0)
    bytes_of = set()
    for is_open in (True, False):
        task = loaded(tmp_path, name)
        if is_open:
            task.examples("train")
        training = ShardTraining(task, task.network(), shard)
        training.advance(2)
        bytes_of.add(tuple(array.tobytes() for array in training.parameters().values()))
    assert len(bytes_of) == 1


def test_a_stream_that_has_an_index_has_examples(tmp_path: Path) -> None:
    """PyTorch calls it a stream, but its rows can be read in any order."""
    tried(tmp_path, "Recorded")


def test_validation_examples_of_a_task_are_training_examples(tmp_path: Path) -> None:
    """With augmentation, drawn alike at every evaluation."""
    task = loaded(tmp_path, "Noisy")
    found = [evaluate_on(task.network(), task, np.arange(9), "validation") for _ in range(2)]
    assert found[0].loss == found[1].loss
    assert found[0].samples == 9
    assert found[0].loss != evaluate_on(task.network(), task, np.arange(9)).loss


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task_options": {"depth": 3}}, "task_options"),
        ({"task": "own_tasks:Grouped", "schedule": "cosine"}, "schedule"),
        ({"task": "own_tasks:Grouped", "warmup": 0.1}, "warmup"),
        ({"task": "own_tasks:Grouped", "final_rate": 0.1}, "final_rate"),
        ({"task": "own_tasks:Grouped", "decay": 0.5}, "decay"),
        ({"task": "own_tasks:Grouped", "decay_every": 2}, "decay_every"),
        ({"task": "own_tasks:Duel", "clip_norm": 1.0}, "clip_norm"),
        ({"task": "own_tasks:Duel", "inside": {"processes": 2}}, "inside"),
        ({"task": "own_tasks:Duel", "accumulate": 2}, "accumulate"),
        ({"task": "own_tasks:Duel", "precision": "float16"}, "precision"),
        ({"dataset": "mnist"}, "dataset"),
        ({"model": "mlp"}, "model"),
        ({"flip": True}, "flip"),
        ({"loss": "binary_cross_entropy"}, "loss"),
        ({"task": None, "task_options": {"width": 3}}, "task_options"),
        ({"task": "elsewhere:Plane"}, "task"),
        ({"task": "Plane"}, "task"),
    ],
)
def test_fields_that_a_task_decides_are_refused_beside_it(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    """They would have no effect."""
    with pytest.raises(SpecError) as refusal:
        tried(tmp_path, "Plane", **fields)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("Grouped", {"learning_rate": 0.5}, "learning_rate = 0.5 has no effect"),
        ("Duel", {"optimizer": "adam"}, "optimizer = 'adam' has no effect"),
        (
            "Grouped",
            {"momentum": 0.0, "weight_decay": 0.1},
            "momentum = 0.0 and weight_decay = 0.1 have no effect",
        ),
        ("Grouped", {}, None),
        ("Plane", {"learning_rate": 0.5}, None),
    ],
)
def test_fields_that_an_own_optimizer_decides_are_told(
    tmp_path: Path, name: str, fields: dict[str, Any], said: str | None
) -> None:
    """In one line, and not refused: an optimizer() may leave the choice to the spec."""
    task = loaded(tmp_path, name, **fields)
    told = without_effect(task, task.network())
    assert told == (() if said is None else (f"{said}: own_tasks:{name} has its own optimizer()",))


@pytest.mark.parametrize("method", ["model", "examples", "loss", "step"])
def test_a_method_that_is_not_there_says_which_has_to_be_written(method: str) -> None:
    """Also where a user calls it of `super()`, or of a task by hand."""

    class Bare(Task):
        """A task without anything."""

    arguments = {"model": 0, "examples": 1, "loss": 2, "step": 3}[method]
    with pytest.raises(NotImplementedError, match=rf"test_own:.*Bare must define {method}\(\)"):
        getattr(Bare(), method)(*range(arguments))


def test_a_class_of_an_importable_module_is_named_by_it() -> None:
    """A spec holds text alone, and one of `__main__` cannot be found by another process."""
    import own_tasks  # type: ignore[import-not-found]

    assert Spec(task=own_tasks.Plane).task == "own_tasks:Plane"
    inside = type("Inside", (own_tasks.Plane,), {"__module__": "__main__"})
    with pytest.raises(SpecError, match=r'move it to a file lab.py, and write Spec\(task="lab:In'):
        Spec(task=inside)  # type: ignore[arg-type]
