"""A batch in parts takes the same step as a whole one, or a line says that it does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.trial import check_trains
from tests.learning.tasks.conftest import lab, loaded

__all__ = ["lab"]

pytestmark = pytest.mark.usefixtures("lab")

TOKENS = "optimizer_tasks:Tokens"


def trained(root: Path, returns: str, **fields: Any) -> ShardTraining:
    """Train three batches of tokens."""
    task = loaded(root, TOKENS, task_options={"returns": returns}, **fields)
    place = LocalTask(indices=np.arange(48), round=0, shard=0)
    training = ShardTraining(task, task.network(), place)
    training.advance(3)
    return training


def bytes_of(training: ShardTraining) -> list[bytes]:
    """Return the bytes of its parameters."""
    return [array.tobytes() for array in training.parameters().values()]


def test_a_sum_and_a_count_are_a_mean_over_what_was_counted(tmp_path: Path) -> None:
    """Of a whole batch to the bit, and the loss of a training is that of all tokens."""
    pair, mean = trained(tmp_path, "pair"), trained(tmp_path, "mean")
    assert bytes_of(pair) == bytes_of(mean)
    assert pair.mean_loss == pytest.approx(mean.mean_loss, rel=0.01)


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_a_sum_and_a_count_in_parts_are_the_same_step(tmp_path: Path, parts: int) -> None:
    """But for rounding; the mean of a part alone would count as much as that of another."""
    whole = trained(tmp_path, "pair", clip_norm=0.5)
    cut = trained(tmp_path, "pair", clip_norm=0.5, accumulate=parts)
    means = trained(tmp_path, "mean", clip_norm=0.5, accumulate=parts)
    assert cut.mean_loss == pytest.approx(whole.mean_loss, rel=1e-6)
    for name, array in whole.parameters().items():
        assert np.allclose(array, cut.parameters()[name], atol=1e-6)
    assert not np.allclose(whole.parameters()["4.bias"], means.parameters()["4.bias"], atol=1e-4)


def test_the_sums_go_on_elsewhere(tmp_path: Path) -> None:
    """The loss of a task that was handed over is that of all its tokens."""
    task = loaded(tmp_path, TOKENS)
    place = LocalTask(indices=np.arange(48), round=0, shard=0)
    first, second = (ShardTraining(task, task.network(), place) for _ in range(2))
    first.advance(2)
    second.restore(first.snapshot())
    for one in (first, second):
        one.advance(1)
    assert second.mean_loss == first.mean_loss


def test_the_test_loss_counts_what_the_loss_counts(tmp_path: Path) -> None:
    """Batches of 16 and of 7 examples come to the same, which means of batches do not."""
    found = {
        (returns, size): evaluate(
            (
                task := loaded(tmp_path, TOKENS, task_options={"returns": returns}, batch_size=size)
            ).network(),
            task,
        ).loss
        for returns in ("pair", "mean")
        for size in (16, 7)
    }
    assert found["pair", 16] == pytest.approx(found["pair", 7], rel=1e-6)
    assert found["mean", 16] != pytest.approx(found["mean", 7], rel=1e-6)


@pytest.mark.parametrize(
    ("returns", "dropout", "told"),
    [
        ("pair", 0.0, False),
        ("pair", 0.2, False),
        ("mean", 0.0, True),
        ("mean", 0.2, True),
        ("normed", 0.0, True),
        ("contrast", 0.0, True),
    ],
)
def test_the_trial_tells_if_parts_are_another_step(
    tmp_path: Path, returns: str, dropout: float, *, told: bool
) -> None:
    """Also under dropout, and of batch normalization, but not if nothing is cut."""
    options = {"returns": returns, "dropout": dropout}
    for parts in (1, 4):
        task = loaded(tmp_path, TOKENS, task_options=options, accumulate=parts)
        cost = check_trains(task, [np.arange(48)])
        assert cost is not None
        line = "accumulate = 4 is not the same step as a whole batch"
        assert cost.in_parts.startswith(line) == (told and parts > 1), cost.in_parts


def test_a_pair_that_is_none_is_refused(tmp_path: Path) -> None:
    """In a line that says what a loss may be."""
    task = loaded(tmp_path, TOKENS, task_options={"returns": "odd"})
    why = r"loss\(\) must return a scalar, the mean of its batch, or a pair of a sum and a count"
    with pytest.raises(SpecError, match=why):
        check_trains(task, [np.arange(48)])
