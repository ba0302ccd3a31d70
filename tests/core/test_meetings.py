"""How rounds and epochs belong together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downpour.core.spec import Meetings, Spec


def test_without_meetings_a_round_is_an_epoch() -> None:
    """As `meet` = 1 is the default."""
    for meetings in (Meetings(3), Spec(epochs=3).meetings):
        assert meetings.rounds == 3
        assert [meetings.epoch_of(number) for number in range(3)] == [0, 1, 2]
        assert all(meetings.ends_epoch(number) for number in range(3))
        assert meetings.named(2) == "epoch 3"


@given(epochs=st.integers(1, 20), each=st.integers(1, 12), before=st.integers(0, 60))
def test_an_experiment_may_go_on_in_the_middle_of_an_epoch(
    epochs: int, each: int, before: int
) -> None:
    """Its rounds are those of a training without the stop, whose epochs it counts on."""
    whole = Meetings(before // each + epochs, each)
    rest = Meetings(epochs, each, before)
    assert before + rest.rounds == whole.rounds
    assert rest.epochs_in_all == whole.epochs
    for number in range(rest.rounds):
        assert rest.epoch_of(number) == whole.epoch_of(before + number)
        assert rest.ends_epoch(number) == whole.ends_epoch(before + number)
    assert rest.ends_epoch(rest.rounds - 1)


def test_a_round_is_named_where_an_epoch_has_several() -> None:
    """People look for the epoch first."""
    assert Meetings(5, 10).named(24) == "epoch 3, round 25"
