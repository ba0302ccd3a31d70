"""Many finished experiments in a directory: a start, a list and a submission do not look at them.

Counted, not timed: what is opened and listed below each of their folders.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.network.rpc.messages import PAGE_EXPERIMENTS_MAX, Status
from tests.cluster.manager.conftest import SMALL, Start

FINISHED = 3


class Looks:
    """Counts what is opened and listed in each folder of experiments, while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.at: Counter[str] = Counter()
        # A hook cannot be taken back.
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in {"open", "os.listdir", "os.scandir"} and args:
            parts = Path(str(args[0])).parts
            if "experiments" in parts:
                self.at["/".join(parts[parts.index("experiments") + 1 :][:1])] += 1


@pytest.fixture(scope="module")
def hook() -> Looks:
    """One hook for all tests."""
    return Looks()


@pytest.fixture
def looks(hook: Looks) -> Iterator[Looks]:
    """Counts from now to the end of the test."""
    hook.at.clear()
    hook.on = True
    yield hook
    hook.on = False


@pytest.fixture
def finished(start: Start) -> list[str]:
    """The names of experiments that have ended, in a directory without a manager."""
    first = start()
    names = []
    for number in range(FINISHED):
        names.append(first.submit(name=f"ended-{number}"))
        # Before that a preparation goes on in this process, whatever becomes of its manager, and
        # publishes a model while the tests count.
        first.status_when(_is_running, names[-1])
        first.client.cancel(names[-1])
    first.close()
    start().close()  # it sweeps what the first one may have been interrupted at
    return names


def _is_running(status: Status) -> bool:
    return status.experiment is not None and status.experiment.state is ExperimentState.RUNNING


def test_a_start_a_list_and_a_submission_look_at_none(
    start: Start, finished: list[str], looks: Looks
) -> None:
    """All that is known of them comes from one file; a submission looks for its request there."""
    second = start()
    assert [one.experiment for one in second.client.list_experiments()] == finished
    submitted = second.client.submit(SMALL.to_toml(), "0123abcd")
    before = looks.at[""]
    second.manager.look_around()
    assert [looks.at[name] for name in finished] == [0] * FINISHED
    # The folder of all of them is listed at the start and for the list, and synced with a new name
    # in it; but not listed once a second to see whether that of the running experiment is there.
    assert looks.at[""] == before == 3
    second.client.cancel(submitted)


def test_where_the_list_is_lost_each_journal_is_read_once(
    start: Start, tmp_path: Path, finished: list[str], looks: Looks
) -> None:
    """And the list is whole again: the manager after that looks at none."""
    for path in tmp_path.glob("shared/ended-*.jsonl"):
        path.unlink()
    second = start()
    states = {one.experiment: one.state for one in second.client.list_experiments()}
    assert states == dict.fromkeys(finished, ExperimentState.CANCELLED)
    second.close()
    # Its names, those of the journal, the journal, and the names twice for what is to be swept.
    assert max(looks.at[name] for name in finished) <= 5
    looks.at.clear()
    start().close()
    assert [looks.at[name] for name in finished] == [0] * FINISHED


def test_pages_go_back_to_the_first(start: Start, finished: list[str]) -> None:
    """Each page ends before the one that was asked for first."""
    second = start()
    last = second.client.list_experiments(limit=2)
    assert [one.experiment for one in last] == finished[1:]
    assert [one.experiment for one in second.client.list_experiments(finished[1])] == finished[:1]
    assert second.client.list_experiments(finished[0]) == ()
    assert second.client.list_experiments("never-submitted") == ()
    assert len(second.client.list_experiments(limit=PAGE_EXPERIMENTS_MAX + 1)) == FINISHED
