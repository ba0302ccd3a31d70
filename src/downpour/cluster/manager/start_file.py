"""Files between experiments: the start of one, and the state that another leaves for it.

One file has the parameters. If the experiment continues another one, further files have the states
of that one's shards and its best model. If both have the same outer optimizer, a file has its
state. The new experiment takes copies, because users may remove either experiment before the other.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, StoreError
from downpour.base.values import AttemptId, PublishedFile
from downpour.cluster.manager.aggregation import Aggregation
from downpour.core.scheduler.events import Best, HandedOn
from downpour.core.scheduler.experiment import Experiment
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.aggregators import first_state, is_state_of
from downpour.files.spec_file import read_spec
from downpour.files.store import (
    Array,
    Buffer,
    DirectoryStore,
    ModelName,
    SharedDirectory,
    Store,
    encode,
    layout,
    parse_name,
)
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.model_files import NamedModel, find_model, read_model, whole_content
from downpour.record.journal import read_journal, replay_one
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine, EvaluatedLine, ImprovedLine

_DEPENDS_ON = (
    "task",
    "task_options",
    "model",
    "model_options",
    "code",
    "shards",
    "mode",
    "overlap",
    "optimizer",
    "optimizer_state",
    "compression",
)
"""The fields that decide the shards, and the states that they leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """The files in an ended experiment's folder; none if no experiment can continue from them.

    By shard, `states` are the files of the optimizers' states. If rounds overlap, `steps` are those
    of each shard's last update, and `former` is the version that the next round's tasks begin from.
    """

    states: Mapping[int, Path] = field(default_factory=dict)
    steps: Mapping[int, Path] = field(default_factory=dict)
    former: Path | None = None

    def checksum(self) -> str | None:
        """Return a checksum of all files and their roles; None without files."""
        files = {str(shard): path for shard, path in sorted(self.states.items())}
        files |= {f"step {shard}": path for shard, path in sorted(self.steps.items())}
        files |= {"former": self.former} if self.former is not None else {}
        digest = xxhash.xxh3_128()
        for what, path in files.items():
            digest.update(f"{what} ".encode())
            digest.update(read_regular(path))
        return digest.hexdigest() if files else None

    def publish(self, store: Store) -> HandedOn:
        """Publish copies, named as if the first round had left the files."""
        former = None
        if self.former is not None:
            # Don't name it as a model version, because an experiment has only one of each number.
            name = str(layout.OwnName(0, 0, secrets.token_hex(3)))
            # Publish it whole, because versions that lead to it belong to another experiment.
            content = whole_content(DirectoryStore(self.former.parent), self.former.name)
            former = store.put_new(name, content)
        return HandedOn(
            states=_copies(store, "optimizer", self.states),
            steps=_copies(store, "update", self.steps),
            former=former,
        )


def _copies(
    store: Store, kind: layout.AttemptKind, files: Mapping[int, Path]
) -> tuple[tuple[int, PublishedFile], ...]:
    copies = []
    for shard, path in sorted(files.items()):
        begun = AttemptId(experiment="", round=0, shard=shard, attempt=0)
        name = layout.attempt_name(kind, begun, secrets.token_hex(3))
        copies.append((shard, store.put_new(name, [read_regular(path)])))
    return tuple(copies)


def _left_beside(spec: Spec, shared: SharedDirectory) -> LeftBehind:
    """Return the files next to the model version that a spec continues from.

    If a relevant field differs, such as the number of shards, or if a file is missing, all shards
    start without states.
    """
    found = _version_of(spec, shared) if spec.shards_go_on else None
    if found is None:
        return LeftBehind()
    model, version = found[0], found[1].version
    former_spec = read_spec(model.with_name(layout.SPEC_NAME))
    if any(getattr(former_spec, name) != getattr(spec, name) for name in _DEPENDS_ON):
        return LeftBehind()
    names = names_in(model.parent)

    def beside(kind: layout.AttemptKind) -> dict[int, Path]:
        last = layout.last_of_shards(kind, names, version)
        return {shard: model.with_name(name) for shard, name in last.items()}

    states = beside("optimizer") if spec.hands_on else {}
    if not spec.overlap:
        return LeftBehind(states=states)
    steps, former = beside("update"), layout.version_among(names, version - 1)
    if former is None or len(steps) != spec.shards:
        return LeftBehind()
    return LeftBehind(states=states, steps=steps, former=model.with_name(former))


AsVersion = Callable[[Mapping[str, Array]], Sequence[Buffer]]
"""Returns the content of a model version with some tensors, which may include frozen ones."""

_COMPARISON_FIELDS = (
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

    With it, `keep_best` and `stop_after` decide as if there had been no stop. The new experiment
    first evaluates the versions that the ended one had no time to compare.
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
        return meetings.epoch_of(spec.evaluated_before) - meetings.epoch_of(best)

    def publish(self, store: Store, as_version: AsVersion) -> HandedOn:
        """Publish copies as versions of the new experiment."""
        best = None
        if self.round is not None:
            model = _copied_version(self.file, store, as_version) if self.file is not None else None
            best = Best(round=self.round, value=self.value, model=model)
        files = sorted(self.unevaluated.items())
        copies = tuple((number, _copied_version(path, store, as_version)) for number, path in files)
        return HandedOn(best=best, unevaluated=copies)


def _copied_version(path: Path, store: Store, as_version: AsVersion) -> PublishedFile:
    tensors = read_model(path, path.name, None, field="init_from").tensors
    # Don't name it as a model version, because an experiment has only one of each number.
    return store.put_new(str(layout.OwnName(0, 0, secrets.token_hex(3))), as_version(tensors))


def best_before(spec: Spec, model: Path, version: int) -> BestBefore | None:
    """Return what an ended experiment has compared, for a spec that continues it.

    This returns None if the spec compares no models, or other values than the ended experiment did,
    or if its record or the best model's file is gone. Then the comparison starts from scratch.
    The `model` is the version from which the spec continues, in the experiment's folder.
    """
    former = read_spec(model.with_name(layout.SPEC_NAME))
    differs = any(getattr(former, name) != getattr(spec, name) for name in _COMPARISON_FIELDS)
    drawn_anew = bool(spec.validation) and former.seed != spec.seed
    if spec.goal is None or differs or drawn_anew:
        return None
    try:
        ended = _Ended(model.parent, former, version)
    except (FileMissing, FileCorrupt):
        return None
    best = ended.best(spec)
    return best and replace(best, unevaluated=ended.unevaluated(spec))


def rounds_of_versions(spec: Spec, folder: Path, last: int) -> list[int]:
    """Return how many rounds an experiment had ended at each version from 0 to `last`.

    In step, each version ends a round. If shards are rounds apart, versions follow each other
    faster, and the record says which tasks each one has. A shard trains its rounds in order.
    """
    if spec.in_step:
        return list(range(last + 1))
    lines = (line for _, line in read_record(folder / layout.RECORD_NAME))
    parts = {line.version: line.parts for line in lines if isinstance(line, AggregatedLine)}
    done, rounds = dict.fromkeys(range(spec.shards or 1), 0), []
    for version in range(last + 1):
        done |= {shard: number + 1 for number, shard in parts.get(version, ())}
        rounds.append(min(done.values()))
    return rounds


class _Ended:
    """The folder of an ended experiment, up to the version from which another continues it."""

    def __init__(self, folder: Path, spec: Spec, version: int) -> None:
        self._folder = folder
        self._meetings = spec.meetings
        self._names = names_in(folder)
        lines = [line for _, line in read_record(folder / layout.RECORD_NAME)]
        self._rounds = rounds_of_versions(spec, folder, version)
        part = "validation" if spec.validation else "test"
        self._improved = [one for one in lines if isinstance(one, ImprovedLine)]
        evaluated = (one for one in lines if isinstance(one, EvaluatedLine) and one.part == part)
        self._evaluated = {one.round for one in evaluated}

    def best(self, spec: Spec) -> BestBefore | None:
        """Return the best model; None if its file is needed and gone."""
        earlier = [one for one in self._improved if one.round < self._rounds[-1]]
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
        """Return the models that the experiment should have evaluated, by round."""
        there, rounds = (parse_name(name) for name in self._names), self._rounds
        known = (one for one in there if isinstance(one, ModelName) and one.version < len(rounds))
        ended = {
            number - 1: str(one)
            for one in known
            if rounds.index(number := rounds[one.version]) == one.version
        }
        return {
            self._now(number, spec): self._folder / self._shown(name)
            for number, name in ended.items()
            if number not in self._evaluated and self._is_due(number, spec)
        }

    def _file_of(self, line: ImprovedLine) -> Path | None:
        is_last = line == self._improved[-1]
        names = [line.file, *([layout.BEST_NAME] if is_last else [])]
        return next((self._folder / self._shown(n) for n in names if n in self._names), None)

    def _shown(self, name: str) -> str:
        """Return the file that was measured for a version: the mean that it is ahead of, if any."""
        mean = layout.beside(name, layout.MeanName)
        return mean if mean in self._names else name

    def _is_due(self, number: int, spec: Spec) -> bool:
        epochs = self._meetings.epoch_of(number) + 1
        is_end = self._meetings.ends_epoch(number) and epochs > 0
        return is_end and epochs % spec.evaluate_every == 0

    def _now(self, number: int, spec: Spec) -> int:
        """Return the number that a round has in the new experiment; both rounds end an epoch."""
        return spec.meetings.last_of(self._meetings.epoch_of(number) + 1)


def start_of(spec: Spec, shared: SharedDirectory | None) -> NamedModel:
    """Return the parameters that an experiment begins from; without `shared`, only paths work."""
    name, field = spec.init_from or "", "init_from"

    def read() -> NamedModel:
        return read_model(find_model(name, shared, field=field), name, shared, field=field)

    found = shared.retry_policy.call_through_outage(read) if shared else read()
    if spec.init_checksum not in {None, found.checksum}:
        accepted = (
            f"must have checksum {spec.init_checksum}, not {found.checksum}: it is a different file"
        )
        raise SpecError(field, name, accepted)
    return found


def with_checksums(spec: ResolvedSpec, shared: SharedDirectory, *, known: bool) -> ResolvedSpec:
    """Fix which files an experiment begins from; reads no model whose checksum is `known`."""
    if spec.init_from is None:
        return spec
    model = spec.init_checksum if known else start_of(spec, shared).checksum
    outer, best = _outer_beside(spec, shared), _best_before(spec, shared)
    found = {
        "outer_checksum": outer.checksum if outer else None,
        "states_checksum": _left_beside(spec, shared).checksum(),
        "best_checksum": best.checksum() if best else None,
    }
    for name, checksum in found.items():
        _check_same(spec, name, checksum)
    return spec.replace(init_checksum=model, **found)


def _check_same(spec: Spec, field: str, found: str | None) -> None:
    """Refuse a file that a spec continues from if it has changed since the submission."""
    stated = getattr(spec, field)
    if stated not in {None, found}:
        accepted = f"{spec.init_from} has {'none now' if found is None else f'another: {found}'}"
        raise SpecError(field, stated, accepted)


def first_outer_state(
    spec: Spec, shared: SharedDirectory, model: Mapping[str, Array], trained: Collection[str]
) -> Mapping[str, Array]:
    """Return the state with which the outer optimizer begins or continues."""
    begun = first_state(spec.outer, model, trained)
    if spec.outer_checksum is None:
        return begun
    found = _outer_beside(spec, shared)
    _check_same(spec, "outer_checksum", found.checksum if found else None)
    if found is None:
        return begun
    shapes = ({n: (a.shape, a.dtype) for n, a in one.items()} for one in (begun, found.tensors))
    if next(shapes) != next(shapes):
        raise SpecError("init_from", spec.init_from, "its outer state belongs to another network")
    return found.tensors


def handed_on(
    spec: ResolvedSpec, shared: SharedDirectory, store: Store, as_version: AsVersion
) -> HandedOn:
    """Publish what an ended experiment leaves, see `_left_beside` and `best_before`."""
    handed = HandedOn()
    if spec.states_checksum is not None:
        left = _left_beside(spec, shared)
        _check_same(spec, "states_checksum", left.checksum())
        handed = left.publish(store)
    if spec.best_checksum is None:
        return handed
    best = _best_before(spec, shared)
    _check_same(spec, "best_checksum", best.checksum() if best else None)
    compared = best.publish(store, as_version) if best else handed
    return replace(handed, best=compared.best, unevaluated=compared.unevaluated)


def _version_of(spec: Spec, shared: SharedDirectory) -> tuple[Path, layout.ModelName] | None:
    """Return the model version that a spec continues from, and its name; None if it is none."""
    if not (spec.rounds_before and spec.init_from):
        return None
    model = find_model(spec.init_from, shared, field="init_from")
    parsed = layout.parse_name(model.name)
    return (model, parsed) if isinstance(parsed, layout.ModelName) else None


def _best_before(spec: ResolvedSpec, shared: SharedDirectory) -> BestBefore | None:
    """Return what the experiment that a spec continues has compared; None if it can't serve."""
    found = _version_of(spec, shared) if spec.goal is not None else None
    return best_before(spec, found[0], found[1].version) if found is not None else None


def _outer_beside(spec: Spec, shared: SharedDirectory) -> NamedModel | None:
    """Return the outer state beside the version that a spec continues, if it fits."""
    found = _version_of(spec, shared) if spec.outer.keeps_state else None
    if found is None:
        return None
    path = found[0].with_name(layout.beside(found[0].name, layout.OuterName))
    if not path.is_file():
        return _outer_at(found[0])
    state = read_model(path, str(spec.init_from), shared, field="init_from")
    return state if is_state_of(spec.outer, state.tensors) else None


def _outer_at(model: Path) -> NamedModel | None:
    """Return the outer state at the last version of an experiment whose manager was killed.

    It follows from the journal and the files that the journal names; None if these are gone.
    """
    former = journaled(model.parent)
    if former is None or former.outer is None or former.model.name != model.name:
        return None
    sums = Aggregation(former.spec, DirectoryStore(model.parent))
    try:
        state = sums.outer_at(former.models, former.outer, former.since_outer)
    except StoreError:
        return None
    digest = xxhash.xxh3_128()
    for part in encode(state, {}):
        digest.update(part)
    return NamedModel(tensors=dict(state), checksum=digest.hexdigest())


def journaled(folder: Path) -> Experiment | None:
    """Return how far an experiment had come by its journal; None without one."""
    try:
        return replay_one(read_journal(folder), patience=1.0)
    except StoreError:
        return None
