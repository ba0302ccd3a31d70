"""The small values that messages, files and the scheduler share; pure, and frozen.

They name things (a published file, an attempt) and carry measurements (an update, an evaluation,
the state of a machine). They never read or write anything: `files/store/` owns files,
`network/rpc/wire.py` turns these values into Thrift structs and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

DEFAULT_PORT = 9090
"""The manager's port; here, because command lines show it before anything of Thrift is imported."""
PAGE_PORT = 8123
"""The live page's port."""
DEFAULT_MANAGER = f"localhost:{DEFAULT_PORT}"
DEFAULT_SHARED = "shared_dir"
"""Where a manager is, and its shared directory, unless a user says so."""

NAME_BYTES_MAX = 200
BARE_NAME = f"a bare name: 1 to {NAME_BYTES_MAX} bytes, printable, no slash, no leading dot"


def is_bare_name(name: str) -> bool:
    """Whether a name cannot lead out of the directory it is looked up in, on any file system."""
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
    """One attempt at a task by one worker.

    The task is (experiment, round, shard), counted from 0; `attempt` numbers its tries. A
    contribution is identified by its task alone, never by the attempt.
    """

    experiment: str
    round: int
    shard: int
    attempt: int

    def __str__(self) -> str:
        return f"round {self.round} shard {self.shard} attempt {self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an attempt publishes: the file of its parameters, and how they were trained.

    `loss` is the sample-weighted mean over the task's batches, computed in float64; `steps` are
    optimizer steps; seconds are the worker's own clock. The worker computed
    the last step with that many `processes`. `shortages` counts the steps of the experiment for
    which it has had too little memory so far, those of attempts without an update among them; after
    each, it went on with fewer processes, or tried the step of an accelerator again.
    """

    file: PublishedFile
    samples: int
    steps: int
    loss: float
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    optimizer_state: PublishedFile | None = None
    processes: int = 1
    shortages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The published state of a task in training, after `steps_done` steps.

    An attempt that goes on from it has the same bytes as one that never stopped.
    """

    file: PublishedFile
    steps_done: int
    steps_total: int

    @property
    def share(self) -> float:
        """How much of the task it holds, in 0..1."""
        return self.steps_done / self.steps_total if self.steps_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running attempt has come, and its newest snapshot, if there is one.

    `elapsed_seconds` run from the beginning of the attempt to the end of its last step, or of its
    loading, by the clock of the worker: two reports give a speed, whenever they were sent.
    """

    attempt: AttemptId
    steps_done: int
    steps_total: int
    elapsed_seconds: float
    snapshot: Snapshot | None = None

    @property
    def share(self) -> float:
        """How much of the task is done, in 0..1."""
        return self.steps_done / self.steps_total if self.steps_total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemState:
    """The state of a worker's machine; shares are in 0..1."""

    cpu_others: float
    load_average: float
    memory_used: float
    io_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """What a worker's own process uses.

    `cpu_share` is 1.0 for one core in full, averaged since the sample before; `memory_bytes` are
    resident, those shared with other processes included.
    """

    cpu_share: float
    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The quantiles of a duration, in seconds: it is below `q10` with probability 0.1, and so on.

    The quantiles are in rising order.
    """

    q10: float
    q50: float
    q90: float
    q98: float

    @classmethod
    def of(cls, quantiles: Iterable[float]) -> Forecast:
        """Make a forecast of its four quantiles, in rising order."""
        q10, q50, q90, q98 = quantiles
        return cls(q10=q10, q50=q50, q90=q90, q98=q98)

    @property
    def quantiles(self) -> tuple[float, float, float, float]:
        """The four quantiles, in rising order."""
        return self.q10, self.q50, self.q90, self.q98

    def times(self, factor: float) -> Forecast:
        """Return the forecast of a duration multiplied by `factor`."""
        return Forecast.of(seconds * factor for seconds in self.quantiles)

    def later(self, seconds: float) -> Forecast:
        """Return the forecast of a duration that is longer by `seconds`."""
        return Forecast.of(each + seconds for each in self.quantiles)

    def after(self, seconds: float) -> Forecast:
        """Return the forecast of what is left after `seconds`; never negative."""
        return Forecast.of(max(0.0, each - seconds) for each in self.quantiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericClass:
    """What decides the bits of a floating-point result; equal classes give equal bytes.

    `instruction_set` names the processor's vendor, what torch chooses to use of it, and the
    variables of the environment that have a say.
    """

    torch: str
    device: str
    instruction_set: str

    def __str__(self) -> str:
        return f"torch {self.torch} on {self.device} ({self.instruction_set})"


Part = Literal["test", "validation"]
"""Examples that are not trained on: the test examples, and training examples that are set apart."""


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
