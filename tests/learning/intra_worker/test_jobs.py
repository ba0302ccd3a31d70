"""The lines between a worker and its helpers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from downpour.learning.intra_worker.helper_process import Answer, HelperJob, HelperTask, JobPart

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
    assert job.to_line().count("\n") == 1


@given(NUMBERS, st.lists(st.tuples(NUMBERS, st.floats(width=32, allow_nan=False))))
def test_a_loss_keeps_its_bits(job: int, losses: list[tuple[int, float]]) -> None:
    """Also an infinite one."""
    answer = Answer(job=job, losses=tuple(losses))
    assert Answer.of(answer.to_line()) == answer


def test_a_task_with_several_lines_is_one(tmp_path: object) -> None:
    """A spec as TOML has many."""
    task = HelperTask(spec='a = 1\nb = "ü"\n', datasets=str(tmp_path), data_key="k", gradients=2)
    assert task.to_line().count("\n") == 1
    assert HelperTask.of(task.to_line()) == task
