"""A study, the runs that one file describes, and a run, which is one experiment.

`Study` is the interface of grids and searches for the folder, the backends and the runner. Runs
that differ only in their seed are a group; each run of a group is a repetition of its settings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol, Self

from downpour.core.spec import ResolvedSpec, toml_fields
from downpour.experiments.studies.fields import Value
from downpour.experiments.studies.summary import RunSummary
from downpour.files.spec_file import read_toml


@dataclass(frozen=True)
class Run:
    """One experiment of a study: its spec, and the number of workers.

    `workers` is None if the backend decides. A search numbers its runs from 1. A grid identifies
    its runs by their spec, so they have no `number`.
    """

    spec: ResolvedSpec
    workers: int | None
    number: int | None = None

    @cached_property
    def id(self) -> str:
        """The identifier of the run: readable, a safe folder name, different for every other run.

        It follows from spec and workers alone. So subgrids may share a run, and a growing grid
        keeps its runs. We leave out the name, because it changes nothing in the training.
        """
        fields = self.spec.model_dump(exclude_defaults=True, exclude={"name"})
        content = json.dumps({**fields, "workers": self.workers}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        size = f"n{self.spec.shards}" if self.workers is None else f"w{self.workers}"
        readable = f"{size}-{self.spec.split}-{self.spec.aggregate}-s{self.spec.seed}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{readable}-{digest}")

    @property
    def name(self) -> str:
        """The name of the folder of its results."""
        return self.id if self.number is None else f"{self.number:04d}"

    @property
    def title(self) -> str:
        """The run's name on a progress bar."""
        if self.number is not None:
            return f"run {self.number}"
        return f"{self.spec.split}, {self.spec.aggregate}, seed {self.spec.seed}"

    @cached_property
    def group(self) -> str:
        """The key of the run's group: equal for runs that differ only in their seed."""
        return self.spec.replace(seed=0).to_toml() + str(self.workers)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended, and its outcome."""

    run: Run
    summary: RunSummary


class Study(Protocol):
    """A grid or a search.

    Raises:
        SpecError: from every method that reads a file; names the field and the accepted values.
    """

    kind: ClassVar[str]
    """The word for such a study in messages: "grid" or "search"."""
    file_name: ClassVar[str]
    """The name of the study's own file in its folder."""
    runs_folder: ClassVar[str]
    """The name of the folder of its runs in the study's folder."""
    shares_workers: ClassVar[bool]
    """Whether the same manager and workers train all runs."""

    name: str
    """The study's name, and that of its experiments."""

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a study; all runs that it may make are valid."""
        return cls.make(toml_fields(text))

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a study from a user's file."""
        return cls.make(read_toml(path))

    @classmethod
    def make(cls, fields: Mapping[str, Value]) -> Self:
        """Make a study from the fields of a file; all runs that it may make are valid."""

    def to_toml(self) -> str:
        """Write the study with every field resolved; `from_toml` reads back an equal study."""

    def samples(self) -> Iterator[Run]:
        """Yield runs that together need every dataset and number of workers of the study."""

    def has_run(self, name: str) -> bool:
        """Whether a run of this study may have a folder of this name."""

    def run_of(self, name: str, spec: ResolvedSpec) -> Run | None:
        """Return the run of this name; None if that run has another spec."""

    def keeps_runs_of(self, former: Self) -> bool:
        """Whether runs made for an earlier version of the file may count for this one."""
