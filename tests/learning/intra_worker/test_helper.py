"""A helper without a process: the lines that it reads, and what it answers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.learning.intra_worker.helper import help_worker
from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperTask,
    JobPart,
    SharedNetwork,
    create_memory,
)
from downpour.learning.tasks import open_data
from downpour.learning.tasks.loaded import load
from tests.learning.intra_worker.conftest import Trainer


def test_a_job_that_fails_is_answered_without_losses(trainer: Callable[..., Trainer]) -> None:
    """And the next one is done: its worker computes what failed, and tells what is wrong."""
    made = trainer()
    network = load(made.spec, open_data(made.spec, made.folder, made.key)).network()
    memory = create_memory()
    SharedNetwork(network, memory, 1).fill()
    task = HelperTask(
        spec=made.spec.to_toml(), datasets=str(made.folder), data_key=made.key, gradients=1
    )
    jobs = [
        HelperJob(
            number=number,
            task_seed=1,
            step=0,
            parts=[JobPart(number=1, share=0.5, indices=indices, place=0)],
        )
        for number, indices in [(1, [10**9]), (2, [3, 4])]
    ]
    answers = io.StringIO()
    help_worker([task.to_line(), *(job.to_line() for job in jobs)], answers, memory)
    ready, failed, done = map(Answer.of, answers.getvalue().splitlines())
    assert (ready.job, failed.job, done.job) == (0, 1, 2)
    assert not failed.done
    assert not failed.short
    assert done.done
    [(part, loss)] = done.losses
    assert part == 1
    assert loss == pytest.approx(np.log(10) / 2, abs=0.5)
    os.close(memory)


NUMBERS = st.integers(0, 2**63 - 1)
PARTS = st.builds(
    JobPart,
    number=NUMBERS,
    share=st.floats(0, 1),
    indices=st.lists(NUMBERS, max_size=5),
    place=NUMBERS,
)


@given(st.builds(HelperJob, number=NUMBERS, task_seed=NUMBERS, step=NUMBERS, parts=st.lists(PARTS)))
def test_a_job_is_read_as_it_was_written(job: HelperJob) -> None:
    """On one line."""
    assert HelperJob.of(job.to_line()) == job
    assert "\n" not in job.to_line()


@given(NUMBERS, st.lists(st.tuples(NUMBERS, st.floats(width=32, allow_nan=False))))
def test_a_loss_keeps_its_bits(job: int, losses: list[tuple[int, float]]) -> None:
    """Also an infinite one."""
    answer = Answer(job=job, losses=tuple(losses))
    assert Answer.of(answer.to_line()) == answer


def test_a_task_with_several_lines_is_one(tmp_path: object) -> None:
    """A spec as TOML has many."""
    task = HelperTask(spec='a = 1\nb = "ü"\n', datasets=str(tmp_path), data_key="k", gradients=2)
    assert "\n" not in task.to_line()
    assert HelperTask.of(task.to_line()) == task
