"""What is measured of an arrangement, on real helpers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.auto import Candidate
from downpour.learning.intra_worker.timing import Subject, all_measured

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_helpers")]


@pytest.fixture(autouse=True)
def as_many_threads_afterwards() -> Iterator[None]:
    """Measuring sets the number of this process's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def subject(folder: Path, **fields: object) -> Subject:
    """Digits, and a network."""
    return Subject(Spec.make({"batch_size": 32, "meet": 1, **fields}), folder, None)


def test_each_candidate_is_measured_beside_one_process(tmp_path: Path) -> None:
    """The first is one process; a helper's steps are counted where it has really helped."""
    choices = [Candidate(), Candidate(processes=2)]
    alone, helped = all_measured(subject(tmp_path), choices)
    assert (alone.times_as_fast, alone.refused, helped.refused) == (1.0, "", "")
    assert alone.step_seconds > 0 < helped.step_seconds


def test_a_training_goes_on_beyond_its_shard(tmp_path: Path) -> None:
    """A shard of few steps is begun again, so slices are as long as they should be."""
    small = subject(tmp_path, shards=40)  # 35 examples, two steps
    assert small.timed(small.spec, ExitStack()).seconds(9) > 0


def test_an_arrangement_that_the_network_cannot_take_is_told(tmp_path: Path) -> None:
    """In a line of its own; the others are measured all the same."""
    choices = [Candidate(), Candidate(processes=2), Candidate(threads=2)]
    _, processes, threads = all_measured(subject(tmp_path, batch_size=1), choices)
    assert processes.refused == "inside.processes = 2: a batch of 1 has fewer examples"
    assert threads.refused == ""


def test_a_helper_that_dies_is_not_measured(tmp_path: Path) -> None:
    """The worker would go on alone, and its time would be told for that of two processes."""
    one = subject(tmp_path)
    with ExitStack() as ending:
        timed = one.timed(one.spec.replace(inside={"processes": 2}), ending)
        timed.team.close()  # type: ignore[union-attr]
        with pytest.raises(SpecError, match="a helper has ended"):
            timed.seconds(1)
