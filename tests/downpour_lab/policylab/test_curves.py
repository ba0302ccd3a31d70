"""Curves of progress, and what is learned of what counted."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour import Spec, run
from downpour.base.errors import SpecError
from downpour_lab.policylab.conditions import Conditions, Curve, Memoryless, OneStraggler, Stretch
from downpour_lab.policylab.learning import Learning
from downpour_lab.policylab.ledger import RoundOutcome

positive = st.floats(min_value=0.01, max_value=50.0)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Draw a curve that may stand still, but not at its end."""
    seconds, done = [0.0], [0.0]
    for slope in draw(st.lists(st.sampled_from([0.0, 0.05, 0.1, 1.0]), max_size=4)):
        seconds.append(seconds[-1] + draw(positive))
        done.append(done[-1] + slope)
    return Curve([*seconds, seconds[-1] + draw(positive)], [*done, done[-1] + draw(positive)])


@given(curve=curves(), begun=positive, work=positive, cut=st.floats(min_value=0.01, max_value=0.99))
def test_a_task_that_is_cut_and_gone_on_with_ends_when_it_would_have_ended(
    curve: Curve, begun: float, work: float, cut: float
) -> None:
    """By the same host, at once: nothing is lost and nothing gained."""
    whole = Stretch(curve, begun, work)
    spent = cut * whole.when(1.0)
    rest = Stretch(curve, begun + spent, (1.0 - whole.share(spent)) * work)
    assert spent + rest.when(1.0) == pytest.approx(whole.when(1.0), rel=1e-6, abs=1e-6)


@given(curve=curves(), begun=positive, work=positive, share=st.floats(min_value=0.0, max_value=1.0))
def test_the_share_done_and_the_time_it_takes_belong_together(
    curve: Curve, begun: float, work: float, share: float
) -> None:
    """What is done when a share is done is that share, and all is done in the end."""
    task = Stretch(curve, begun, work)
    assert task.share(task.when(share)) == pytest.approx(share, abs=1e-6)
    assert task.share(task.when(1.0) + 1.0) == 1.0
    assert task.when(share) <= task.when(1.0) + 1e-9


@pytest.mark.parametrize(
    ("seconds", "done"),
    [
        ((0.0,), (0.0,)),
        ((1.0, 2.0), (0.0, 1.0)),
        ((0.0, 1.0, 1.0), (0.0, 0.5, 1.0)),
        ((0.0, 1.0, 2.0), (0.0, 1.0, 0.5)),
        ((0.0, 1.0, 2.0), (0.0, 1.0, 1.0)),
    ],
)
def test_a_malformed_curve_is_refused(seconds: tuple[float, ...], done: tuple[float, ...]) -> None:
    """A task on it would never end, or end before it begins."""
    with pytest.raises(ValueError, match="curve"):
        Curve(seconds, done)


@pytest.mark.parametrize("made", [lambda: OneStraggler(from_share=0.5), Memoryless])
def test_conditions_are_the_same_whenever_one_asks(made: Callable[[], Conditions]) -> None:
    """Policies are compared in the same ones."""
    conditions, again = made(), made()
    for number, host in ((0, 0), (7, 16), (99, 3)):
        one, other = conditions.curve(number, host), again.curve(number, host)
        assert [one.done(t) for t in (1.0, 9.0, 50.0)] == [other.done(t) for t in (1.0, 9.0, 50.0)]


def test_one_host_of_sixteen_is_slow_from_its_share_on() -> None:
    """At a quarter of its speed; the machine's state shows it; after ten rounds it is another."""
    conditions = OneStraggler(from_share=0.5)
    slow = conditions.straggler(3)
    seconds = [conditions.curve(3, host).when(1.0) for host in range(16)]
    assert max(seconds) == seconds[slow] > 2 * sorted(seconds)[-2]
    half = conditions.curve(3, slow).when(0.5)
    assert seconds[slow] == pytest.approx(half + 4 * half)
    assert conditions.state(3, slow, 9.0).cpu_others > conditions.state(3, slow, 1.0).cpu_others
    assert len({conditions.straggler(number) for number in range(0, 100, 10)}) > 3
    assert len({OneStraggler(from_share=0.0).straggler(number) for number in range(100)}) == 1


def test_memoryless_tasks_say_nothing_of_the_next_ones() -> None:
    """Who was slow in a round is no likelier to be slow in the next; some always are."""
    conditions = Memoryless(rounds=400)
    took = [[conditions.curve(r, h).when(1.0) > 13.0 for h in range(4)] for r in range(400)]
    often = sum(map(sum, took)) / 1600
    again = [later[h] for now, later in pairwise(took) for h in range(4) if now[h]]
    assert 0.05 < often < 0.2
    assert abs(sum(again) / len(again) - often) < 0.08


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
