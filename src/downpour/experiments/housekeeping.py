"""Measures what takes room in a shared directory, and removes what no experiment needs any more.

A removal is safe while managers run. It first moves a folder out of the sight of all others, under
a hidden name; a removal that is cut off is completed by the next one. An experiment that begins
from another one has its own copies.
"""

import os
import re
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from downpour.base.errors import SpecError, StoreError
from downpour.files.store import SharedDirectory, parse_name
from downpour.files.store.layout import (
    RECORD_NAME,
    RESULT_NAMES,
    AttemptName,
    MeanName,
    ModelName,
    OuterName,
)
from downpour.files.store.publish import TEMPORARY_PREFIX, writing
from downpour.files.store.shared_directory import RUN_LOCK_NAME, lost_its_manager
from downpour.host.paths import FolderLock
from downpour.network.rpc.messages import ExperimentSummary
from downpour.record.mirror import FOLDER as JOURNALS
from downpour.record.record import is_exported, stream_record
from downpour.record.record_lines import KINDS, PreparedLine, SubmittedLine, kind_of
from downpour.record.stored_experiments import changed_seconds, experiments_in

_REMOVED = f"{TEMPORARY_PREFIX}removed-"
_SOURCES = "sources"
_VERSIONS = ModelName, MeanName
LineT = TypeVar("LineT", SubmittedLine, PreparedLine)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentUsage:
    """How many bytes an experiment takes; a file with two names counts once.

    `states_bytes` are those of files that only `--resume` needs: optimizers' states, updates, and
    versions before the last one.
    """

    experiment: str
    state: str
    changed_seconds: float
    models_bytes: int
    states_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
        return self.models_bytes + self.states_bytes + self.other_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUsage:
    """How many bytes a prepared dataset takes, and the experiments that trained on it."""

    key: str
    total_bytes: int
    experiments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryUsage:
    """The sizes of everything in a shared directory, the largest first.

    `free_bytes` is None in an object store.
    """

    experiments: tuple[ExperimentUsage, ...]
    datasets: tuple[DataUsage, ...]
    logs_bytes: int
    free_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """The bytes of everything in the directory."""
        experiments = sum(each.total_bytes for each in self.experiments)
        return experiments + sum(each.total_bytes for each in self.datasets) + self.logs_bytes


class Housekeeper:
    """Measures and removes the experiments and datasets of a shared directory.

    `records` is the folder with the experiments' records, see `stored_records`.
    """

    def __init__(self, shared: SharedDirectory, records: Path) -> None:
        self._shared = shared
        self._records = records
        self.experiments = {each.experiment: each for each in experiments_in(records)}

    def usage(self) -> DirectoryUsage:
        """Measure everything."""
        bucket, root = self._shared.bucket, self._shared.root
        experiments = map(self.usage_of, self.experiments)
        return DirectoryUsage(
            experiments=tuple(sorted(experiments, key=lambda one: -one.total_bytes)),
            datasets=tuple(sorted(self._datasets(), key=lambda one: -one.total_bytes)),
            logs_bytes=sum(self._files("logs").values()),
            free_bytes=shutil.disk_usage(root).free if bucket is None else None,
        )

    def usage_of(self, experiment: str) -> ExperimentUsage:
        """Measure an experiment."""
        sizes = Counter[str]()
        for kind, _, size in self._kinds(experiment):
            sizes[kind] += size
        return ExperimentUsage(
            experiment=experiment,
            state=self.experiments[experiment].state,
            changed_seconds=changed_seconds(self._records / experiment),
            models_bytes=sizes["models"],
            states_bytes=sizes["states"],
            other_bytes=sizes["other"],
        )

    def check(self, experiment: str, *, unfinished: bool) -> None:
        """Check that no experiment, run or manager needs an experiment.

        `unfinished` also allows one that `--resume` could continue.

        Raises:
            SpecError: it is needed, or it does not exist.
        """
        if experiment not in self.experiments:
            raise SpecError("ID", experiment, f"no such experiment in {self._shared.where}")
        summary = self.experiments[experiment]
        if not self._has_ended(summary):
            if self._may_go_on(experiment):
                run = self._shared.experiment_path(experiment) / RUN_LOCK_NAME
                end = "Ctrl-C in its `downpour run`" if run.exists() else "`downpour cancel ID`"
                raise SpecError("ID", experiment, f"has not ended; {end} ends it")
            if not unfinished:
                accepted = "has not ended, and another manager can continue it"
                raise SpecError("ID", experiment, f"{accepted}; --unfinished removes it")
        elif summary.state != "finished" and summary.rounds_done and not unfinished:
            done = "ended after {} of {} epochs".format(*summary.epochs)
            accepted = f"{done}, and --resume can continue it; --unfinished removes it"
            raise SpecError("ID", experiment, accepted)
        for name in self._going:
            submitted = self._first(name, SubmittedLine)
            spec = submitted.spec if submitted is not None else {}
            begins_from = re.split("[@/]", str(spec.get("init_from") or ""))[0]
            if begins_from == experiment and name != experiment:
                raise SpecError("ID", experiment, f"{name} begins from it, and has not ended")

    def remove(self, experiment: str) -> int:
        """Remove an experiment that was checked; returns how many bytes that frees."""
        self.forget(experiment)
        size = sum(self._files(f"experiments/{experiment}").values())
        if self._shared.bucket is not None:
            # First the journals, because a manager continues what has a journal.
            for place in (JOURNALS, "experiments"):
                self._remove_objects(f"{place}/{experiment}")
        self._remove_folder(self._shared.experiment_path(experiment))
        return size

    def forget(self, experiment: str) -> None:
        """Count an experiment as removed."""
        del self.experiments[experiment]
        if experiment in self._going:
            self._going.remove(experiment)

    def remove_states(self, experiment: str) -> int:
        """Remove what only `--resume` needs of an experiment; returns how many bytes that frees."""
        store, freed = self._shared.store(experiment), 0
        for kind, name, size in self._kinds(experiment):
            if kind == "states":
                store.delete(name)
                freed += size
        return freed

    def unused_data(self) -> list[DataUsage]:
        """Return the prepared datasets on which no experiment of this directory has trained.

        Raises:
            SpecError: an experiment has not prepared its dataset yet.
        """
        for name in self._going:
            if not self._data_key(name):
                accepted = f"cannot be told before {name} has prepared its dataset"
                raise SpecError("unused-data", name, accepted)
        return [one for one in self._datasets() if not one.experiments]

    def remove_data(self, key: str) -> int:
        """Remove a prepared dataset; returns how many bytes that frees."""
        folder, size = self._shared.datasets, sum(self._files(f"datasets/{key}").values())
        if self._shared.bucket is not None:
            self._remove_objects(f"datasets/{key}")
        # A preparation of the same examples holds this lock, and then finds no folder.
        with writing(folder, key), FolderLock(folder / f".{key}.lock"):
            for source in (folder / _SOURCES).glob("*.json"):
                if f'"{key}"' in source.read_text("utf-8"):
                    source.unlink(missing_ok=True)
            self._remove_folder(folder / key)
        return size

    def older_than(self, seconds: float) -> list[str]:
        """Return the experiments that changed last before a time, in seconds since 1970."""
        older = []
        for name in self.experiments:
            with suppress(StoreError):  # another removal may have been faster
                if changed_seconds(self._records / name) < seconds:
                    older.append(name)
        return older

    def _has_ended(self, summary: ExperimentSummary) -> bool:
        # Its manager writes the record last, when it needs no other file of the folder any more.
        record = self._records / summary.experiment / RECORD_NAME
        return summary.state.ended and (self._shared.bucket is not None or is_exported(record))

    def _may_go_on(self, experiment: str) -> bool:
        """Whether a run or a manager may be at work on an experiment that has not ended."""
        if self._shared.bucket is not None:
            return True  # only other machines may know its manager
        return not lost_its_manager(self._shared.experiment_path(experiment))

    @cached_property
    def _going(self) -> list[str]:
        """The experiments that had not ended."""
        return [one for one, each in self.experiments.items() if not self._has_ended(each)]

    def _data_key(self, experiment: str) -> str:
        line = self._first(experiment, PreparedLine)
        return line.dataset if line is not None else ""

    def _first(self, experiment: str, kind: type[LineT]) -> LineT | None:
        """Return the first line of a kind in an experiment's record; None if there is none."""
        path = self._records / experiment / RECORD_NAME
        lines = stream_record(path, without=KINDS.keys() - {kind_of(kind)})
        return next((line for _, line in lines if isinstance(line, kind)), None)

    def _kinds(self, experiment: str) -> Iterator[tuple[str, str, int]]:
        """Yield an experiment's files: as models, states or other, their names and sizes."""
        files = self._files(f"experiments/{experiment}")
        parsed = {name: parse_name(name) for name in files}
        versions = (one.version for one in parsed.values() if isinstance(one, _VERSIONS))
        last = max(versions, default=0)
        for name, size in files.items():
            match parsed[name]:
                case OuterName() | AttemptName():
                    kind = "states"
                case ModelName() | MeanName() as one:
                    kind = "models" if one.version == last else "states"
                case _:
                    kind = "models" if name in RESULT_NAMES else "other"
            yield kind, name, size

    def _datasets(self) -> Iterator[DataUsage]:
        users = defaultdict[str, list[str]](list)
        for name in self.experiments:
            users[self._data_key(name)].append(name)
        sizes = defaultdict[str, int](int)
        for path, size in self._files("datasets").items():
            key, _, rest = path.partition("/")
            if rest and key not in {_SOURCES, "downloads"} and not key.startswith("."):
                sizes[key] += size
        for key, size in sizes.items():
            yield DataUsage(key=key, total_bytes=size, experiments=tuple(users[key]))

    def _files(self, place: str) -> dict[str, int]:
        """Return the size of each file below a place, once if it has two names."""
        if self._shared.bucket is not None:
            found = self._shared.bucket.found(place)
            return {one.key.removeprefix(f"{place}/"): one.size_bytes for one in found}
        root, files = self._shared.root / place, dict[tuple[int, int], tuple[str, int]]()
        for folder, _, names in os.walk(root):
            for name in sorted(names):
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    at = path.lstat()
                    # Of two names, the first counts: that of the version before that of the model.
                    known = path.relative_to(root).as_posix(), at.st_size
                    files.setdefault((at.st_dev, at.st_ino), known)
        return dict(files.values())

    def _remove_objects(self, place: str) -> None:
        assert self._shared.bucket is not None  # noqa: S101 - its callers have looked
        for key in self._shared.bucket.keys(place):
            self._shared.bucket.remove(key)

    def _remove_folder(self, folder: Path) -> None:
        hidden = self._shared.root / f"{_REMOVED}{secrets.token_hex(4)}"
        try:
            folder.rename(hidden)
        except FileNotFoundError:
            if self._shared.bucket is None:
                raise SpecError("ID", folder.name, "another process has removed it") from None
        except OSError as error:
            raise StoreError(f"{folder} cannot be removed ({error.strerror})") from None
        for removed in self._shared.root.glob(f"{_REMOVED}*"):
            shutil.rmtree(removed, ignore_errors=True)
