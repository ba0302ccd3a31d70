"""The tasks that ship train as a plain loop does, are short, and go on elsewhere unchanged.

Real processes are in `test_real_processes.py`.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from downpour.files.store import decode, encode
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import frozen_of, parameters_of, ties_of
from tests.examples.conftest import Example
from tests.examples.plain import plain_training
from tests.learning.tasks.porting import loaded
from tests.learning.training.conftest import same_bytes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")

LINES_MAX = 40


def begun(
    task: LoadedTask, *, round_: int = 0, state: Mapping[str, NDArray[Any]] | None = None
) -> ShardTraining:
    """Begin on one shard of all examples, with a network that was just built."""
    shard = LocalTask(indices=np.arange(task.count("train")), round=round_, shard=0)
    return ShardTraining(task, task.network(), shard, state)


def lines_of_code(path: Path) -> int:
    """Count lines that are neither blank, comments nor docstrings."""
    text = path.read_text("utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for n, line in lines if line.strip() and line.strip()[0] != "#" and n not in docs)


def test_an_example_is_short_and_its_spec_is_accepted(example: Example) -> None:
    """Forty lines at most, network and all."""
    assert lines_of_code(example.code) <= LINES_MAX
    assert example.whole.name == example.name
    assert (example.whole.task or "").startswith(f"{example.name}:")


def test_a_plain_loop_gives_the_same_loss(example: Example, tmp_path: Path) -> None:
    """To six digits, in each epoch and on the test examples, schedule and randomness and all."""
    spec = example.small
    task = loaded(spec, tmp_path)
    model = task.network()
    losses, state = [], None
    for epoch in range(spec.epochs):
        shard = LocalTask(indices=np.arange(task.count("train")), round=epoch, shard=0)
        training = ShardTraining(task, model, shard, state)
        training.advance(training.steps_total)
        state = training.optimizer_state() if spec.optimizer_state == "keep" else None
        losses.append(training.mean_loss)
    plain = plain_training(task.task, spec)
    assert losses == pytest.approx(plain.losses, rel=1e-6)
    assert evaluate(model, task).loss == pytest.approx(plain.test_loss, rel=1e-6)


def test_a_shard_goes_on_elsewhere_with_the_same_bytes(example: Example, tmp_path: Path) -> None:
    """After any step: through a file into a network that was just built, in a task made anew."""
    straight = begun(loaded(example.small, tmp_path))
    for steps in range(1, straight.steps_total):
        first = begun(loaded(example.small, tmp_path))
        first.advance(steps)
        second = begun(loaded(example.small, tmp_path))
        second.restore({**through_a_file(first.snapshot())})
        second.advance(second.steps_total)
        straight.advance(straight.steps_total)
        assert same_bytes(second.snapshot(), straight.snapshot())


def through_a_file(arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Encode and decode arrays as a published file's."""
    return decode(b"".join(map(bytes, encode(arrays, {}))), "snapshot").tensors


def test_only_what_is_trained_travels(example: Example, tmp_path: Path) -> None:
    """Adapters without the network under them; everything where everything is trained."""
    task = loaded(example.small, tmp_path)
    model = task.network()
    travels, frozen = parameters_of(model), frozen_of(model)
    ties = ties_of(model)
    assert travels.keys() | frozen.keys() | ties.keys() == model.state_dict().keys()
    assert bool(ties) == (example.name in {"lora_gpt2", "word_lstm"})
    if example.name == "lora_gpt2":
        assert all("lora_" in name for name in travels)
        assert sum(a.nbytes for a in travels.values()) < sum(a.nbytes for a in frozen.values())
    else:
        assert not frozen
