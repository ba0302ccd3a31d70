"""In which turns a stage takes the parts of a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downpour_lab.inside.pipeline import Turn, turns


@given(st.integers(0, 9), st.integers(1, 20))
def test_each_part_passes_once_and_comes_back_in_order(ahead: int, parts: int) -> None:
    """Forward before backward, and never more parts under way than are needed."""
    taken = list(turns(ahead, parts))
    for kind in Turn:
        assert [number for turn, number in taken if turn is kind] == list(range(parts))
    under_way = 0
    for turn, _ in taken:
        under_way += 1 if turn is Turn.FORWARD else -1
        assert 0 <= under_way <= ahead + 1


@given(st.integers(2, 6), st.integers(1, 9))
def test_no_stage_waits_for_ever(stages: int, parts: int) -> None:
    """Each waits for the one before and for the one after; all come to their end."""
    ahead = [list(turns(stages - 1 - number, parts)) for number in range(stages)]
    done: set[tuple[int, Turn, int]] = set()
    while any(ahead):
        ready = [
            (stage, *turns_[0])
            for stage, turns_ in enumerate(ahead)
            if turns_ and _needed(stage, *turns_[0], stages) <= done
        ]
        assert ready
        for stage, turn, number in ready:
            done.add((stage, turn, number))
            del ahead[stage][0]


def _needed(stage: int, turn: Turn, number: int, stages: int) -> set[tuple[int, Turn, int]]:
    neighbour = stage - 1 if turn is Turn.FORWARD else stage + 1
    return {(neighbour, turn, number)} if 0 <= neighbour < stages else set()
