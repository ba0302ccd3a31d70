"""The best model that an ended experiment leaves for an experiment that continues it.

With it, `keep_best` and `stop_after` decide as if there had been no stop. The ended experiment may
also have versions that it had no time to compare. The new experiment evaluates those first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from downpour.base.errors import FileCorrupt, FileMissing
from downpour.base.values import PublishedFile
from downpour.core.scheduler.best import Best, evaluated_before
from downpour.core.scheduler.events import HandedOn
from downpour.core.spec import Spec
from downpour.files.records.record import read_record
from downpour.files.records.record_lines import EvaluatedLine, ImprovedLine
from downpour.files.spec_file import read_spec
from downpour.files.store import Array, Buffer, ModelName, Store, layout, parse_name
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.named_model import read_model

AsVersion = Callable[[Mapping[str, Array]], Sequence[Buffer]]
"""Returns the content of a model version with some tensors, which may include frozen ones."""

_DEPENDS_ON = (
    "goal",
    "task",
    "task_options",
    "code",
    "model",
    "model_options",
    "loss",
    "dataset",
    "dataset_options",
    "data_path",
    "image_size",
    "train_limit",
    "test_limit",
    "validation",
)
"""Properties of a spec that must be the same if the values of two experiments are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestBefore:
    """The best model of an ended experiment, and the versions that it has not compared.

    Rounds count as in the new experiment, so they are negative. `round` is None if no model has a
    value yet. `file` is None unless the spec keeps the best model.
    """

    round: int | None = None
    value: float = 0.0
    file: Path | None = None
    unevaluated: Mapping[int, Path] = field(default_factory=dict)

    def checksum(self) -> str:
        """Return a checksum of the value, the rounds and the files."""
        digest = xxhash.xxh3_128(f"{self.round} {self.value!r} ".encode())
        if self.file is not None:
            digest.update(read_regular(self.file))
        for number, path in sorted(self.unevaluated.items()):
            digest.update(f" {number} ".encode())
            digest.update(read_regular(path))
        return digest.hexdigest()

    def epochs_since(self, spec: Spec) -> int:
        """Return how many evaluated epochs had no better model; 0 if evaluations are missing."""
        if self.unevaluated:
            return 0
        meetings = spec.meetings
        best = self.round if self.round is not None else meetings.last_of(0)
        return meetings.epoch_of(evaluated_before(spec)) - meetings.epoch_of(best)

    def publish(self, store: Store, as_version: AsVersion) -> HandedOn:
        """Publish copies as versions of the new experiment."""
        best = None
        if self.round is not None:
            model = _copied(self.file, store, as_version) if self.file is not None else None
            best = Best(round=self.round, value=self.value, model=model)
        files = sorted(self.unevaluated.items())
        copies = tuple((number, _copied(path, store, as_version)) for number, path in files)
        return HandedOn(best=best, unevaluated=copies)


def _copied(path: Path, store: Store, as_version: AsVersion) -> PublishedFile:
    tensors = read_model(path, path.name, None, field="init_from").tensors
    # Don't name it as a model version, because an experiment has only one of each number.
    return store.put_new(layout.own_name(0, 0, secrets.token_hex(3)), as_version(tensors))


def best_before(spec: Spec, model: Path, version: int) -> BestBefore | None:
    """Return what an ended experiment has compared, for a spec that continues it.

    This returns None if the spec compares no models, or other values than the ended experiment did,
    or if its record or the best model's file is gone. Then the comparison starts from scratch.

    Args:
        spec: The spec that continues the experiment.
        model: The version from which it continues, in the experiment's folder.
        version: That version's number.

    Raises:
        SpecError: the spec there is unreadable.
        SharedDirectoryError: the folder cannot be read now.
    """
    former = read_spec(model.with_name(layout.SPEC_NAME))
    differs = any(getattr(former, name) != getattr(spec, name) for name in _DEPENDS_ON)
    drawn_anew = bool(spec.validation) and former.seed != spec.seed
    if spec.goal is None or differs or drawn_anew:
        return None
    try:
        ended = _Ended(model.parent, former, version)
    except (FileMissing, FileCorrupt):
        return None
    best = ended.best(spec)
    return best and replace(best, unevaluated=ended.unevaluated(spec))


class _Ended:
    """The folder of an ended experiment, up to the version from which another continues it."""

    def __init__(self, folder: Path, spec: Spec, version: int) -> None:
        self._folder = folder
        self._meetings = spec.meetings
        self._version = version
        self._names = names_in(folder)
        lines = [line for _, line in read_record(folder / layout.RECORD_NAME)]
        part = "validation" if spec.validation else "test"
        self._improved = [one for one in lines if isinstance(one, ImprovedLine)]
        evaluated = (one for one in lines if isinstance(one, EvaluatedLine) and one.part == part)
        self._evaluated = {one.round for one in evaluated}

    def best(self, spec: Spec) -> BestBefore | None:
        """Return the best model; None if its file is needed and gone."""
        earlier = [one for one in self._improved if one.round < self._version]
        if not earlier:
            return BestBefore()
        # An experiment always evaluates its last round. One without the stop would not do so, if
        # that round was not due. So we prefer the best model of the rounds that were.
        due = [one for one in earlier if self._is_due(one.round, spec)]
        for one in (*due[-1:], earlier[-1]):
            file = self._file_of(one)
            if file is not None or spec.keep_best is None:
                kept = file if spec.keep_best is not None else None
                return BestBefore(round=self._now(one.round, spec), value=one.value, file=kept)
        return None

    def unevaluated(self, spec: Spec) -> dict[int, Path]:
        """Return the versions that the experiment should have evaluated, by round."""
        there = (parse_name(name) for name in self._names)
        ended = {
            one.version - 1: str(one)
            for one in there
            if isinstance(one, ModelName) and one.version <= self._version
        }
        return {
            self._now(number, spec): self._folder / name
            for number, name in ended.items()
            if number not in self._evaluated and self._is_due(number, spec)
        }

    def _file_of(self, line: ImprovedLine) -> Path | None:
        is_last = line == self._improved[-1]
        names = [line.file, *([layout.BEST_NAME] if is_last else [])]
        return next((self._folder / name for name in names if name in self._names), None)

    def _is_due(self, number: int, spec: Spec) -> bool:
        epochs = self._meetings.epoch_of(number) + 1
        is_end = self._meetings.ends_epoch(number) and epochs > 0
        return is_end and epochs % spec.evaluate_every == 0

    def _now(self, number: int, spec: Spec) -> int:
        """Return the number that a round has in the new experiment; both rounds end an epoch."""
        return spec.meetings.last_of(self._meetings.epoch_of(number) + 1)
