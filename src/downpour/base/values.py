"""Small frozen values that messages, files and the scheduler share.

They name things (a published file, an attempt) and carry measurements (an update, an evaluation,
the state of a machine). They never read or write anything: `files/store/` owns files, and
`network/rpc/wire.py` turns these values into Thrift structs and back.

A worker's label is KEY=VALUE. A need, which labels must contain, may be just KEY for any value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from downpour.base.errors import SpecError

DEFAULT_PORT = 9090
"""The manager's port; it is here because help texts show it before we import Thrift."""
PAGE_PORT = 8123
"""The live page's port."""
DEFAULT_MANAGER = f"localhost:{DEFAULT_PORT}"
DEFAULT_SHARED = "shared_dir"
"""The default host of the manager, and the default shared directory."""

NAME_BYTES_MAX = 200
BARE_NAME = f"a bare name: 1 to {NAME_BYTES_MAX} bytes, printable, no slash, no leading dot"


def small_number(digits: str) -> int | None:
    """Return the number that up to 12 digits make; None for any other text."""
    # Python itself fails with more than 4,300 digits, with a ValueError that few callers expect.
    return int(digits) if re.fullmatch("[0-9]{1,12}", digits, re.ASCII) else None


def is_bare_name(name: str) -> bool:
    """Whether a name cannot lead out of its directory, on any file system."""
    return (
        name.isprintable()
        and not name.startswith(".")
        and "/" not in name
        and "\\" not in name
        and 1 <= len(name.encode("utf-8", errors="surrogatepass")) <= NAME_BYTES_MAX
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit of a field beyond its type, which `network/rpc/wire.py` checks in every message."""

    accepts: Callable[[Any], bool]
    accepted: str


def _is_checksum(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", text) is not None


BareName = Annotated[str, Rule(is_bare_name, BARE_NAME)]
Checksum = Annotated[str, Rule(_is_checksum, "32 hexadecimal digits")]
ChecksumOrNothing = Annotated[
    str, Rule(lambda text: not text or _is_checksum(text), "32 hexadecimal digits, or nothing")
]
AnyNumber = Annotated[float, Rule(lambda _: True, "any number; the aggregator checks it")]
ShortText = Annotated[
    str,
    Rule(lambda text: text.isprintable() and len(text) <= 500, "at most 500 printable characters"),
]
"""A peer's text about itself, which logs, records and displays repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A durable file in an experiment's directory."""

    name: BareName
    size_bytes: int
    checksum: Checksum


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AttemptId:
    """One attempt at a task by one worker.

    A task is (experiment, round, shard), counted from 0; `attempt` numbers its attempts. The task
    alone identifies a contribution; the attempt never does.
    """

    experiment: BareName
    round: int
    shard: int
    attempt: int

    def __str__(self) -> str:
        return f"round {self.round} shard {self.shard} attempt {self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An attempt's result: the parameters' file, and facts; seconds are by the worker's clock."""

    file: PublishedFile
    samples: int
    steps: int  # of the optimizer
    loss: AnyNumber
    """The sample-weighted mean over the task's batches, in float64."""
    load_seconds: float
    train_seconds: float
    publish_seconds: float
    optimizer_state: PublishedFile | None = None
    processes: int = 1  # which computed the last step
    shortages: int = 0
    """How many steps of the experiment the worker has lacked memory for, also in attempts without
    an update. It then continued with fewer processes, or retried an accelerator's step."""
    trial: ChecksumOrNothing = ""
    """The checksum of the trial's steps in this process; empty if it did not repeat them."""
    step_losses: tuple[AnyNumber, ...] = ()
    """The mean losses of stretches of its steps: the k-th of n ends after k / n, rounded up."""
    step_rates: tuple[AnyNumber, ...] = ()
    """The learning rate of the last step of each stretch."""

    @property
    def checksums(self) -> tuple[str, ...]:
        """The checksums of its files; updates with equal ones have the same bytes."""
        state = self.optimizer_state
        return (self.file.checksum, *((state.checksum,) if state is not None else ()))


class StepCount:
    """The steps of a task, done and in all, and the facts that follow from them."""

    __slots__ = ()
    steps_done: int
    steps_total: int

    @property
    def share(self) -> float:
        """The finished share of the task, in 0..1."""
        return self.steps_done / self.steps_total if self.steps_total else 0.0

    @property
    def phase(self) -> Literal["loading", "training", "publishing"]:
        """The work of its worker, which knows the number of steps once it has loaded all."""
        if not self.steps_total:
            return "loading"
        return "training" if self.steps_done < self.steps_total else "publishing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(StepCount):
    """The published state of a task in training, after `steps_done` steps.

    An attempt that continues from it produces the same bytes as one that never stopped.
    """

    file: PublishedFile
    steps_done: int
    steps_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(StepCount):
    """The progress of a running attempt, and its newest snapshot, if there is one.

    `elapsed_seconds` measures from the beginning of the attempt to the end of its last step, or of
    its loading, by the worker's clock. So two reports give a speed, no matter when the worker sent
    them. `moved_bytes` are those of files that it has read and written since.
    """

    attempt: AttemptId
    steps_done: int
    steps_total: int
    elapsed_seconds: float
    snapshot: Snapshot | None = None
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemState:
    """The state of a worker's machine; shares are in 0..1."""

    cpu_others: float
    load_average: float
    memory_used: float
    io_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The resources of a worker's own process.

    `cpu_share` is 1.0 for one full core, averaged since the previous sample; `memory_bytes` are
    resident, including those shared with other processes.
    """

    cpu_share: float
    memory_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Quantiles of seconds, rising: a duration is below `q10` with probability 0.1, and so on."""

    q10: float
    q50: float
    q90: float
    q98: float

    @classmethod
    def of(cls, quantiles: Iterable[float]) -> Forecast:
        """Make a forecast from its four quantiles, in rising order."""
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
        """Return the forecast of the time that remains after `seconds`; never negative."""
        return Forecast.of(max(0.0, each - seconds) for each in self.quantiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericClass:
    """The facts that decide the bits of a floating-point result; equal classes give equal bytes.

    `instruction_set` names the processor's vendor, the instructions that torch chooses, and the
    environment variables that influence results.
    """

    torch: ShortText
    device: ShortText
    instruction_set: ShortText

    def __str__(self) -> str:
        return f"torch {self.torch} on {self.device} ({self.instruction_set})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSums:
    """The checksums of the steps that each process repeats, and the class that they hold for.

    `looks` are checksums of the whole state: as built, and after each step. `rehearsed` says
    whether two processes of the manager have agreed on them.
    """

    numeric_class: str
    looks: tuple[str, ...]
    rehearsed: bool = False


Part = Literal["test", "validation"]
"""Examples outside the training: the test examples, and held-out training examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """The facts about a prepared dataset that we know without reading an example.

    `classes` is 0 if targets are not classes (then `targets_per_sample` counts the numbers to
    predict); `sample_shape` is the shape of one example, channels first.
    """

    train_samples: int
    test_samples: int
    sample_shape: tuple[int, ...]
    classes: int
    targets_per_sample: int = 1


LABELS_MAX, CHARACTERS_MAX = 16, 64
_KEY = r"[A-Za-z0-9][\w.-]*"
_LABEL = re.compile(f"{_KEY}=.*")
_NEED = re.compile(f"{_KEY}(=.+)?")


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels if they are valid."""
    if len(labels) > LABELS_MAX:
        raise SpecError("label", len(labels), f"at most {LABELS_MAX} labels are possible")
    for label in labels:
        fits = label.isprintable() and len(label) <= CHARACTERS_MAX
        if not fits or not _LABEL.fullmatch(label):
            accepted = f"must be KEY=VALUE, at most {CHARACTERS_MAX} printable characters"
            raise SpecError("label", label, accepted)
    keys = [label.partition("=")[0] for label in labels]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError("label", key, "is given twice")
    return tuple(labels)


def merged(labels: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """Merge labels; if two have the same key, the later one counts."""
    return tuple({label.partition("=")[0]: label for label in (*labels, *own)}.values())


def checked_need(text: str) -> str:
    """Return a need if it is valid."""
    if not (text.isprintable() and len(text) <= CHARACTERS_MAX and _NEED.fullmatch(text)):
        raise ValueError(text)
    return text


def has(labels: Collection[str], need: str) -> bool:
    """Say whether labels meet a need."""
    if "=" in need:
        return need in labels
    return any(label.startswith(f"{need}=") for label in labels)


def missing(labels: Collection[str], needs: Iterable[str]) -> tuple[str, ...]:
    """Return the needs that labels do not meet."""
    return tuple(need for need in needs if not has(labels, need))
