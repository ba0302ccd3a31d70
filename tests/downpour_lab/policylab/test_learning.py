"""What simulated rounds let count is trained for real."""

from pathlib import Path

import pytest

from downpour import Spec, run
from downpour.base.errors import SpecError
from downpour_lab.policylab.learning import Learning
from downpour_lab.policylab.ledger import RoundOutcome

SPEC = Spec(meet=1, dataset="digits", split="class", seed=3)
SHARDS = 5


@pytest.fixture
def learning(tmp_path: Path) -> Learning:
    """Each of five shards has two of the digits."""
    return Learning(SPEC, SHARDS, tmp_path)


def rounds(count: int, **figures: tuple[int, ...]) -> list[RoundOutcome]:
    """Return rounds that came to the same."""
    return [RoundOutcome(seconds=1.0, **figures)] * count  # type: ignore[arg-type]


@pytest.mark.slow
def test_without_omissions_it_trains_what_a_cluster_trains(
    learning: Learning, tmp_path: Path
) -> None:
    """The same accuracy and loss, to the last bit."""
    result = run(SPEC.replace(shards=SHARDS, epochs=2), workers=1, shared=tmp_path / "cluster")
    evaluation = learning.evaluation(rounds(2))
    assert evaluation.metrics == result.rounds[-1].metrics
    assert evaluation.class_accuracy == result.rounds[-1].class_accuracy


@pytest.mark.slow
def test_the_outer_optimizer_steps_as_a_cluster_s_does(tmp_path: Path) -> None:
    """The same accuracy and loss, to the last bit, with a momentum that each round adds to."""
    spec = SPEC.replace(outer={"optimizer": "nesterov", "momentum": 0.5})
    result = run(spec.replace(shards=2, epochs=3), workers=1, shared=tmp_path / "cluster")
    evaluation = Learning(spec, 2, tmp_path / "laboratory").evaluation(rounds(3))
    assert evaluation.metrics == result.rounds[-1].metrics
    assert evaluation.class_accuracy == result.rounds[-1].class_accuracy


@pytest.mark.slow
def test_a_class_that_is_always_omitted_is_never_learned(learning: Learning) -> None:
    """The model does not know the two digits that the last shard has: four and nine."""
    known = learning.evaluation(rounds(12)).class_accuracy
    biased = learning.evaluation(rounds(12, dropped=(4,))).class_accuracy
    assert min(known[4], known[9]) > 0.1
    assert max(biased[4], biased[9]) == 0.0


def test_a_round_that_was_cut_anew_has_all_examples(learning: Learning) -> None:
    """Sizes are those of the simulation; the data set is cut in proportion."""
    shown: list[int] = []
    cut = learning.evaluation(rounds(3, sizes=(1600, 4800, 3200, 3200, 3200)), shown.append)
    assert cut.metrics != learning.evaluation(rounds(3)).metrics
    assert shown[:3] == [1, 2, 3]


def test_rounds_that_count_the_same_are_trained_once(learning: Learning) -> None:
    """Whatever time they took."""
    slower = [RoundOutcome(seconds=9.0, moves=3)] * 2
    assert learning.evaluation(rounds(2)) is learning.evaluation(slower)


def test_only_whole_updates_are_compared(tmp_path: Path) -> None:
    """The laboratory keeps nothing that a shard has not sent; so it says that it cannot."""
    with pytest.raises(SpecError, match="compression = 'topk'"):
        Learning(SPEC.replace(compression="topk"), SHARDS, tmp_path)
