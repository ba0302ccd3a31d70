"""A study: everything that one file asks for. And a run: one experiment made for it.

`Study` is what folder, backends and runner need to know of a grid or a search. Runs that differ in
their seed only are a group; each run of a group is a repetition of the same settings.
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

from downpour.runtime.spec_file import read_toml
from downpour.spec import ResolvedSpec, toml_fields
from downpour.studies.fields import Value
from downpour.studies.summary import RunSummary


@dataclass(frozen=True)
class Run:
    """One experiment of a study: what is trained, and with how many workers.

    `workers` is None where the backend decides. A search counts its runs by `number`, from 1; in a
    grid a run is known by what it trains, and has none.
    """

    spec: ResolvedSpec
    workers: int | None
    number: int | None = None

    @cached_property
    def id(self) -> str:
        """Name what is run: readable, safe as a folder's name, different for every other run.

        It follows from spec and workers alone, so two groups of a grid share a run, and a grid may
        grow.
        """
        fields = self.spec.model_dump(exclude_defaults=True, exclude={"name"})
        content = json.dumps({**fields, "workers": self.workers}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        size = f"n{self.spec.shards}" if self.workers is None else f"w{self.workers}"
        readable = f"{size}-{self.spec.split}-{self.spec.aggregate}-s{self.spec.seed}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{readable}-{digest}")

    @property
    def name(self) -> str:
        """Name the folder of its results."""
        return self.id if self.number is None else f"{self.number:04d}"

    @property
    def title(self) -> str:
        """Name the run for people who watch it."""
        if self.number is not None:
            return f"run {self.number}"
        return f"{self.spec.split}, {self.spec.aggregate}, seed {self.spec.seed}"

    @cached_property
    def group(self) -> str:
        """Identify its group: equal for runs that differ in their seed only."""
        return self.spec.replace(seed=0).to_toml() + str(self.workers)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended, and its outcome."""

    run: Run
    summary: RunSummary


class Study(Protocol):
    """A grid or a search.

    Raises:
        SpecError: from everything that reads a file; names the field and what is accepted.
    """

    kind: ClassVar[str]
    """The word for such a study."""
    file_name: ClassVar[str]
    """The file in the study's folder that says what was asked for."""
    runs_folder: ClassVar[str]
    """The folder of its runs in the study's folder."""
    shares_workers: ClassVar[bool]
    """Whether the same processes train all runs."""

    name: str
    """The study's name, which its experiments have, too."""

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a study; all that it may run is valid."""
        return cls.make(toml_fields(text))

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read the file that a user wrote."""
        return cls.make(read_toml(path))

    @classmethod
    def make(cls, fields: Mapping[str, Value]) -> Self:
        """Make a study of the fields of a file; all that it may run is valid."""

    def to_toml(self) -> str:
        """Write the study with every field resolved; `from_toml` reads it back to an equal one."""

    def samples(self) -> Iterator[Run]:
        """Yield runs that together need all that any run of the study may need."""

    def has_run(self, name: str) -> bool:
        """Whether a run of this study may have a folder of this name."""

    def run_of(self, name: str, spec: ResolvedSpec) -> Run | None:
        """Return the run of this name if it has this spec; None if the spec is another run's."""

    def keeps_runs_of(self, former: Self) -> bool:
        """Whether runs that were made for a former version of the file may count for this one."""
