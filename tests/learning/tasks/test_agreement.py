"""Manager and workers agree on a task's examples before anything is trained on them."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from downpour.base.errors import FileMissing, SpecError, UnfitWorker
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.allowlist import VARIABLE
from downpour.learning.tasks import resemble
from downpour.learning.tasks.agreement import (
    TaskData,
    check_named,
    check_same_data,
    open_data,
    prepare_data,
)
from downpour.learning.tasks.loaded import load
from downpour.learning.tasks.own import sketched

from .conftest import loaded

pytestmark = pytest.mark.usefixtures("lab")

SPEC = Spec(task="own_tasks:Sided")


def opened(root: Path, spec: Spec = SPEC) -> TaskData:
    """Prepare and open a task's data."""
    data = open_data(spec, root, prepare_data(spec, root))
    assert isinstance(data, TaskData)
    return data


def test_counts_and_labels_are_known_without_the_task(tmp_path: Path) -> None:
    """A manager that takes over needs no torch for them."""
    data = opened(tmp_path)
    assert (data.facts.train_samples, data.facts.test_samples, data.facts.classes) == (60, 60, 2)
    assert data.labels is not None
    assert set(data.labels.tolist()) == {0, 1}
    assert data.understood == "60 training and 60 test examples; 2 classes"
    assert opened(tmp_path, SPEC.replace(task="own_tasks:Plane")).labels is None


def test_limits_count(tmp_path: Path) -> None:
    """Only the first examples are used."""
    data = opened(tmp_path, SPEC.replace(train_limit=7, test_limit=100))
    assert (data.facts.train_samples, data.facts.test_samples) == (7, 60)
    assert data.labels is not None
    assert len(data.labels) == 7


def test_equal_data_have_equal_keys(tmp_path: Path) -> None:
    """Two processes make the same one, also where examples are augmented at random."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for name in ("Sided", "Noisy"):
        spec = SPEC.replace(task=f"own_tasks:{name}")
        assert prepare_data(spec, tmp_path / "a") == prepare_data(spec, tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda points: points[:-1], "has 59 train examples here, but 60 elsewhere"),
        (lambda points: [(x + 1, y) for x, y in points], "train example 0 is different here"),
        (lambda points: [(x, y.astype(float)) for x, y in points], None),
        (lambda points: [(x.tolist(), y) for x, y in points], "train example 0 is different"),
        (
            lambda points: [*points[:-1], (points[-1][0], np.ones(1, int))],
            "example 59 is different",
        ),
    ],
)
def test_a_worker_with_other_examples_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, why: str | None
) -> None:
    """Their number, their types or their values differ; precision alone is no difference."""
    import own_tasks  # type: ignore[import-not-found]

    data, right = opened(tmp_path), own_tasks.Sided.examples
    monkeypatch.setattr(
        own_tasks.Sided,
        "examples",
        lambda task, part: change(right(task, part)),  # type: ignore[operator]
    )
    task = load(SPEC, data)
    if why is None:
        assert len(task.examples("train")) == 60
        return
    with pytest.raises(UnfitWorker, match=why):
        task.examples("train")


def test_examples_that_change_while_a_worker_trains_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task looks at one of those that were looked at, so all in turn."""
    import own_tasks

    points = own_tasks.Plane().examples("train")
    monkeypatch.setattr(own_tasks.Plane, "examples", lambda *_: points)
    task = loaded(tmp_path, "Plane")
    for number in range(20):
        task.look_again(number)
    points[3] = points[5]
    task.look_again(0)
    with pytest.raises(UnfitWorker, match="train example 3 is different here"):
        task.look_again(1)


def test_names_are_checked_before_anything_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is not allowed, or not there, costs no start of processes."""
    check_named(SPEC)
    monkeypatch.setenv(VARIABLE, "own_tasks,nowhere")
    with pytest.raises(SpecError, match="no module nowhere on the import path"):
        check_named(SPEC.replace(task="nowhere:Task"))
    with pytest.raises(SpecError, match="DOWNPOUR_ALLOW allows modules under own_tasks, nowhere"):
        check_named(SPEC.replace(task="elsewhere:Task"))
    with pytest.raises(SpecError, match="no such file"):
        check_named(Spec(dataset="npz", data_path="missing.npz"))


def test_an_experiment_goes_on_with_the_data_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder suffices; where it is gone, the examples must come to the same one."""
    key = prepare_data(SPEC, tmp_path)
    shutil.rmtree(tmp_path / key)
    with pytest.raises(FileMissing):
        open_data(SPEC, tmp_path, key)
    assert prepare_data(SPEC, tmp_path, begun_with=key) == key
    monkeypatch.setattr("own_tasks.EXAMPLES", 50)
    assert prepare_data(SPEC, tmp_path, begun_with=key) == key
    shutil.rmtree(tmp_path / key)
    with pytest.raises(SpecError, match="its examples have changed since the experiment began"):
        prepare_data(SPEC, tmp_path, begun_with=key)


def test_an_experiment_that_is_resumed_refuses_other_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding of another processor gives another key, and is no other example."""
    import own_tasks

    key = prepare_data(SPEC, tmp_path)
    resumed, right = SPEC.replace(data_key=key), own_tasks.Sided.examples
    for factor, same in ((1 + 1e-6, True), (1.5, False)):
        changed = lambda task, part, by=factor: [(x * by, y) for x, y in right(task, part)]  # noqa: E731
        monkeypatch.setattr(own_tasks.Sided, "examples", changed)
        other = prepare_data(resumed, tmp_path)
        assert other != key
        if same:
            check_same_data(resumed, tmp_path, other)
            continue
        with pytest.raises(SpecError, match=r"^task = 'own_tasks:Sided': its examples have"):
            check_same_data(resumed, tmp_path, other)


def test_the_memory_of_very_many_examples_is_remarked() -> None:
    """Their indices alone are gigabytes; the line names the field that helps."""
    facts = DatasetFacts(
        train_samples=300_000_000, test_samples=1, sample_shape=(), classes=0, targets_per_sample=0
    )
    (line,) = TaskData(facts=facts, labels=None, sketches={}).remarks
    assert line == (
        "the indices of 300,000,000 training examples take 2.4 GB in the manager and 2.4 GB in all "
        "workers together; train_limit takes fewer"
    )
    few = replace(facts, train_samples=300_000)
    assert not TaskData(facts=few, labels=None, sketches={}).remarks


def test_an_example_may_hold_what_is_no_number() -> None:
    """A missing target is NaN, and equal on a second read; another number is not."""
    odd = [
        (float("nan"), float("inf"), torch.tensor([torch.inf, torch.nan]), torch.eye(2).to_sparse())
    ]
    assert resemble(sketched(odd, "train", 0), sketched(odd, "train", 0))
    assert not resemble(sketched([float("inf")], "train", 0), sketched([1.0], "train", 0))
