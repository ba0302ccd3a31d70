"""A helper without a process, and one network in the memory of several."""

import io
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from downpour.learning.intra_worker.helper_process import (
    Answer,
    HelperJob,
    HelperTask,
    JobPart,
    SharedNetwork,
    create_memory,
)
from downpour.learning.intra_worker.team import help_worker
from downpour.learning.tasks.agreement import open_data
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


class Network(nn.Module):
    """Two layouts, a buffer, and a layer that a step may leave out."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 2)
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.spare = nn.Linear(3, 1)
        self.spare.weight.requires_grad_(not frozen)
        self.scale = nn.Buffer(torch.tensor(3.0))

    def gradient(self) -> torch.Tensor:
        """Return a copy of the gradient of the convolution."""
        assert self.conv.weight.grad is not None
        return self.conv.weight.grad.clone()


@pytest.fixture
def memory() -> Iterator[int]:
    """Memory of this test's."""
    descriptor = create_memory()
    yield descriptor
    os.close(descriptor)


def test_both_see_the_same_parameters_and_buffers(memory: int) -> None:
    """Also what is written in place afterwards, and the strides stay."""
    mine, its = Network(), Network()
    its.conv.weight.data.zero_()
    SharedNetwork(mine, memory, 1).fill().attach()
    SharedNetwork(its, memory, 1).attach()
    with torch.no_grad():
        mine.conv.weight.mul_(2)
        mine.scale.add_(1)
    assert all(map(torch.equal, mine.state_dict().values(), its.state_dict().values()))
    assert its.conv.weight.stride() == Network().conv.weight.stride()
    assert its.scale == 4


def test_a_gradient_travels_and_is_added(memory: int) -> None:
    """It adds up with the own one, to the bit; what no one reached has none."""
    mine, its = Network(), Network()
    here = SharedNetwork(mine, memory, 2).fill().attach()
    there = SharedNetwork(its, memory, 2).attach()
    x = torch.randn(2, 3, 5, 5)
    its.conv(x).square().mean().backward()
    wanted = its.gradient()
    there.put(1)
    assert its.conv.weight.grad is None
    here.add(1)
    assert torch.equal(mine.gradient(), wanted)
    here.add(1)
    assert torch.equal(mine.gradient(), wanted + wanted)
    assert mine.spare.weight.grad is None


def test_a_frozen_parameter_has_no_gradient(memory: int) -> None:
    """Nor a place for one; its values are shared."""
    mine, its = Network(frozen=True), Network(frozen=True)
    here = SharedNetwork(mine, memory, 1).fill().attach()
    there = SharedNetwork(its, memory, 1).attach()
    its.spare(torch.ones(3)).sum().backward()
    there.put(0)
    here.add(0)
    assert mine.spare.weight.grad is None
    grad = mine.spare.bias.grad
    assert grad is not None
    assert torch.equal(grad, torch.ones(1))


def test_a_sparse_buffer_stays_with_each_process(memory: int) -> None:
    """It has no one piece of memory to share, and never changes; the rest is shared."""
    mine, its = Network(), Network()
    for network in (mine, its):
        network.register_buffer("edges", torch.eye(3).to_sparse(), persistent=False)
    SharedNetwork(mine, memory, 1).fill().attach()
    SharedNetwork(its, memory, 1).attach()
    with torch.no_grad():
        mine.conv.weight.mul_(2)
    assert torch.equal(mine.conv.weight, its.conv.weight)
    assert torch.equal(its.get_buffer("edges").to_dense(), torch.eye(3))
