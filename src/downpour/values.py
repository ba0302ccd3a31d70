"""The small values that messages, files and the scheduler share; pure, and frozen.

They name things (a published file, an attempt) and carry measurements (an update, an evaluation,
the state of a machine). They never read or write anything: `store/` owns files, `rpc/wire.py`
turns these values into Thrift structs and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NAME_BYTES_MAX = 200
BARE_NAME = f"a bare name: 1 to {NAME_BYTES_MAX} bytes, printable, no slash, no leading dot"


def is_bare_name(name: str) -> bool:
    """Whether a name stays inside the directory it is looked up in, on any file system."""
    return (
        name.isprintable()
        and not name.startswith(".")
        and "/" not in name
        and "\\" not in name
        and 1 <= len(name.encode("utf-8", errors="surrogatepass")) <= NAME_BYTES_MAX
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that is durable in an experiment's directory: a bare name, its size and checksum."""

    name: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AttemptId:
    """One try at a task by one worker.

    The task is (experiment, round, shard), counted from 0; `attempt` numbers its tries. A
    contribution is identified by its task alone, never by the attempt.
    """

    experiment: str
    round: int
    shard: int
    attempt: int

    def __str__(self) -> str:
        return f"round {self.round} shard {self.shard} attempt {self.attempt}"


class FailureKind(StrEnum):
    """Why an attempt came to nothing; decides whether another worker would fare better."""

    NON_FINITE = "non_finite"
    OUT_OF_MEMORY = "out_of_memory"
    STORE = "store"
    TASK = "task"
    CANCELLED = "cancelled"
    SPEC = "spec"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a task publishes: the parameters' file and what is known of their making.

    `loss` is the sample-weighted mean over the task's batches, computed in float64; `steps` are
    optimizer steps; seconds are the worker's own clock.
    """

    file: PublishedFile
    samples: int
    steps: int
    loss: float
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    optimizer_state: PublishedFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running attempt has come."""

    attempt: AttemptId
    steps_done: int
    steps_total: int
    elapsed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemState:
    """The state of a worker's machine; shares are in 0..1."""

    cpu_others: float
    load_average: float
    memory_used: float
    io_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericClass:
    """What decides the bits of a floating-point result; equal classes give equal bytes."""

    torch: str
    device: str
    instruction_set: str

    def __str__(self) -> str:
        return f"torch {self.torch} on {self.device} ({self.instruction_set})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How good a model version is on the test examples.

    `class_accuracy` has one entry a class, NaN for a class without test examples, and is empty
    where targets are not classes.
    """

    accuracy: float
    loss: float
    class_accuracy: tuple[float, ...]
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """What is known of a prepared dataset before an example of it is read.

    `classes` is 0 where targets are not classes (then `targets_per_sample` counts the numbers to
    be predicted); `sample_shape` is that of one example, channels first.
    """

    train_samples: int
    test_samples: int
    sample_shape: tuple[int, ...]
    classes: int
    targets_per_sample: int = 1
