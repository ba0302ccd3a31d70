"""The messages between a worker and its helpers: one line of JSON each.

The lines go through a pair of sockets without a name, between a process and the one it started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from downpour.learning.intra_worker.link import LinkEnd
from downpour.learning.training.step import BatchPart


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """Which layers of a pipeline's network a helper has, and the links to its neighbors.

    `number` is that of the stage, of `stages`; `begin` and `end` are numbers of layers; the first
    stage has no link to one `before` it.
    """

    number: int
    stages: int
    begin: int
    end: int
    before: LinkEnd | None
    after: LinkEnd

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Read it."""
        ends = {name: fields[name] and LinkEnd(**fields[name]) for name in ("before", "after")}
        return cls(**{**fields, **ends})


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """Which process of a hybrid a helper is, of `processes`, and its link to the worker.

    The worker has number 0. `dense` is the place of the gradients of dense layers in the shared
    memory.
    """

    number: int
    processes: int
    dense: int
    link: LinkEnd

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Read it."""
        return cls(**{**fields, "link": LinkEnd(**fields["link"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperTask:
    """The training of a helper: a spec as TOML, and the folder and key of its prepared data.

    `gradients` is how many gradients the shared memory has a place for. A helper has a `stage` of
    a pipeline, `slices` of dense layers, or neither: then it has parts of batches only. `code` is
    the folder of the bundle that its worker imports from; empty: of none.
    """

    spec: str
    datasets: str
    data_key: str
    gradients: int
    stage: StageTask | None = None
    slices: SliceTask | None = None
    code: str = ""

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors of its ends of links."""
        ends: list[LinkEnd | None] = []
        if self.stage is not None:
            ends += [self.stage.before, self.stage.after]
        if self.slices is not None:
            ends.append(self.slices.link)
        return [descriptor for end in ends if end is not None for descriptor in end.descriptors]

    def to_line(self) -> str:
        """Return it as a line."""
        return _line(asdict(self))

    @classmethod
    def of(cls, line: str) -> Self:
        """Read it."""
        fields = json.loads(line)
        stage = fields["stage"] and StageTask.of(fields["stage"])
        slices = fields["slices"] and SliceTask.of(fields["slices"])
        return cls(**{**fields, "stage": stage, "slices": slices})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """A part of a batch: its number, its share of the batch, and the indices of its examples.

    `place` is where a helper that has all layers leaves its gradient in the shared memory.
    """

    number: int
    share: float
    indices: list[int]
    place: int = 0

    @classmethod
    def made_of(cls, part: BatchPart, place: int = 0) -> Self:
        """Write a part down."""
        indices = part.indices.tolist()
        return cls(number=part.number, share=part.share, indices=indices, place=place)

    @property
    def part(self) -> BatchPart:
        """The part itself."""
        indices = np.array(self.indices, dtype=np.int64)
        return BatchPart(number=self.number, indices=indices, share=self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperJob:
    """The parts that a helper computes of a step of the task with a seed; counted by `number`."""

    number: int
    task_seed: int
    step: int
    parts: list[JobPart]

    def to_line(self) -> str:
        """Return it as a line."""
        return _line(asdict(self))

    @classmethod
    def of(cls, line: str) -> Self:
        """Read it."""
        fields = json.loads(line)
        return cls(**{**fields, "parts": [JobPart(**part) for part in fields["parts"]]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether a job is `done`, and the losses of those parts that end with the helper, by number.

    A loss is a number, or a sum and a count.

    A job that is not done was `short` of memory, or failed in another way. The first answer is to
    no job: the helper is ready.
    """

    job: int
    done: bool = True
    short: bool = False
    losses: tuple[tuple[int, float | list[float]], ...] = ()

    def to_line(self) -> str:
        """Return it as a line."""
        return _line(asdict(self))

    @classmethod
    def of(cls, line: str) -> Self:
        """Read it."""
        fields = json.loads(line)
        losses = tuple((part, loss) for part, loss in fields["losses"])
        return cls(**{**fields, "losses": losses})


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"
