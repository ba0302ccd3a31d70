"""Lanes, workspaces and arithmetic in virtual time, for the shipped command runner.

`cluster/manager/command_runner.py` and `work.py` run here as they are. Only the numbers differ:
they are digests, and computing them takes as long as the run's timings say. An update's digest
covers exactly what a shard's training depends on. A model's digest covers its updates in shard
order and the model that the shards trained from.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import xxhash

from downpour.base.errors import SharedDirectoryError, SpecError, StoreError, UpdatesRefused
from downpour.base.states import Evaluation
from downpour.base.values import PublishedFile
from downpour.cluster.manager.aggregation import Aggregation
from downpour.cluster.manager.workspace import Beginning, PreparedExperiment, Workspace
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour.files.aggregators import Contribution, Move
from downpour.files.store import SPEC_NAME, Array, SharedDirectory, encode, layout
from downpour.files.store.publish import RetryPolicy
from downpour.host.process import Job, Lanes
from downpour.record.record import RecordReader
from downpour_lab.simulated.disk import SimulatedStore, digest_in, digest_of, tensors_of
from downpour_lab.simulated.environment import Environment
from downpour_lab.simulated.threads import Process

Portion = tuple[int, int]
"""The range of a shard's samples: first, last + 1."""


def dataset(spec: ResolvedSpec) -> str:
    """Return the name of a spec's prepared dataset."""
    return f"{spec.dataset}-{_digest('dataset', spec.dataset).hex()[:16]}"


def first_model(spec: ResolvedSpec) -> bytes:
    """Return the digest of the first model version."""
    return _digest("model", str(spec.seed))


def trained(
    round_number: int, shard: int, portion: Portion, share: float, model: bytes, state: bytes
) -> bytes:
    """Return the update of a shard that was trained from a model and an optimizer's state."""
    which = f"{shard} {portion[0]} {portion[1]} {share}"
    return _digest("update", str(round_number), which, model.hex(), state.hex())


def wrong(update: bytes, worker: str, attempt: str = "") -> bytes:
    """Return the update of a worker that computes wrong: always, or in each attempt otherwise."""
    return _digest("wrong", update.hex(), worker, attempt)


def moved_by(model: bytes, step: bytes) -> bytes:
    """Return the start of a shard in overlapping rounds: a model plus the shard's last update."""
    return _digest("begun", model.hex(), step.hex())


def state_after(update: bytes) -> bytes:
    """Return the optimizer's state after the training that led to an update."""
    return _digest("state", update.hex())


def folded(model: bytes, updates: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the next model, from a model and the updates trained from it, in shard order.

    A single update is the next model.
    """
    updates = list(updates)
    if len(updates) == 1:
        return updates[0][1]
    return _digest("model", model.hex(), *(f"{shard} {made.hex()}" for shard, made in updates))


def moved(model: bytes, pushes: Iterable[tuple[int, bytes, float]]) -> bytes:
    """Return an asynchronous mode's next model, from updates and their factors, in order."""
    made = (f"{shard} {update.hex()} {factor:.6g}" for shard, update, factor in pushes)
    return _digest("moved", model.hex(), *made)


def own_after(model: bytes, update: bytes, factor: float) -> bytes:
    """Return a shard's own parameters after its update has met the model."""
    return _digest("own", model.hex(), update.hex(), f"{factor:.6g}")


def first_outer(spec: ResolvedSpec) -> bytes:
    """Return the outer optimizer's state before the first round."""
    return _digest("outer", str(spec.seed), spec.outer.optimizer)


def stepped(model: bytes, aggregate: bytes, outer: bytes) -> tuple[bytes, bytes]:
    """Return an outer optimizer's next model, and the optimizer's state after that."""
    after = _digest("outer", model.hex(), aggregate.hex(), outer.hex())
    return _digest("model", model.hex(), aggregate.hex(), after.hex()), after


def loss_of(model: bytes) -> float:
    """Return a model's loss: one of few numbers, so that some models are equally good."""
    return model[0] % 5 / 4


def _digest(*parts: str) -> bytes:
    return xxhash.xxh3_128_digest("/".join(parts).encode())


ASKED_WRONGLY = "asked wrongly"
"""Why the manager can't prepare an experiment with a faulty spec."""


_DATA = SimpleNamespace(
    facts=SimpleNamespace(train_samples=1, test_samples=1, classes=1), understood=""
)
"""The dataset of all experiments, as the record tells of it."""


class _Lane:
    """Runs jobs one after the other, in one thread at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._jobs: deque[Job] = deque()
        self._is_busy = False

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        if not self._is_busy:
            self._process.begin(self._run)

    @property
    def is_behind(self) -> bool:
        return bool(self._jobs)

    def _run(self) -> None:
        self._is_busy = True
        while self._jobs:
            self._jobs.popleft()()
        self._is_busy = False


class SimulatedLanes(Lanes):
    """The lanes of a simulated manager."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._of_workers = defaultdict[str, _Lane](partial(_Lane, process))
        self._works = cast("Any", _Lane(process))
        self._evaluations = cast("Any", _Lane(process))

    def call(self, worker: str, job: Job) -> None:
        """Call a worker after all earlier calls to it."""
        self._of_workers[worker].submit(job)

    def alone(self, job: Job) -> None:
        """Run a job at once."""
        self._process.begin(job)

    def close(self) -> None:
        """Do nothing: a manager that dies ends its threads."""


@dataclass(frozen=True, slots=True)
class Takes:
    """Lets time pass in a process, longer where its directory is slow."""

    environment: Environment
    process: Process

    def __call__(self, seconds: float) -> float:
        """Sleep for about so long; return how long it was."""
        seconds = self.environment.disk.takes(seconds, self.process.host)
        self.process.sleep(seconds)
        return seconds

    def store(self, experiment: str, seconds: float, away_seconds: float) -> SimulatedStore:
        """Return an experiment's files, whose operations are retried for these seconds."""
        policy = RetryPolicy(seconds=seconds, away_seconds=away_seconds, sleep=self.process.sleep)
        return SimulatedStore(self.environment.disk, self.process, experiment, policy)


class DigestAggregation(Aggregation):
    """Computes digests; a digest covers all that the tensors would depend on."""

    def __init__(self, spec: ResolvedSpec, store: SimulatedStore, takes: Takes) -> None:
        super().__init__(spec, store)
        self._files = store
        self._takes = takes

    def gather(self) -> None:
        """Leave all updates to `fold`: gathering changes no bytes."""
        self.arrived.clear()

    def fold(
        self,
        model: PublishedFile,
        began: PublishedFile,  # noqa: ARG002 - the updates' digests cover it
        contributions: Sequence[Contribution],
    ) -> tuple[dict[str, Array], Mapping[str, str]]:
        """Fold a round."""
        base = self._read(model)
        updates = self._updates({each.shard: each.file for each in contributions})
        return tensors_of(folded(base, updates.items())), {}

    def check_sole(
        self,
        model: PublishedFile,  # noqa: ARG002 - the update's digest covers it
        began: PublishedFile,  # noqa: ARG002 - as does this
        contribution: Contribution,
    ) -> None:
        """Refuse a round's only update if it can't be read."""
        self._updates({contribution.shard: contribution.file})

    def moved(
        self, model: PublishedFile, moves: Sequence[Move]
    ) -> tuple[dict[str, Array], Mapping[str, str]]:
        """Move the newest version by some updates."""
        base = self._read(model)
        updates = self._updates({each.shard: each.file for each in moves})
        pushes = ((each.shard, updates[each.shard], each.factor) for each in moves)
        return tensors_of(moved(base, pushes)), {}

    def outer_step(
        self, base: Mapping[str, Array], arrays: dict[str, Array], state: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Take the outer optimizer's step."""
        made, after = stepped(*map(digest_of, (base, arrays, state)))
        arrays |= tensors_of(made)
        return tensors_of(after)

    def own_after(self, model: PublishedFile, move: Move) -> Mapping[str, Array]:
        """Return a shard's own parameters after it has met the model."""
        update = digest_in(self._files.look(move.file))
        return tensors_of(own_after(self._read(model), update, move.factor))

    def _read(self, model: PublishedFile) -> bytes:
        return digest_of(self.versions.read(model).tensors)

    def _updates(self, files: Mapping[int, PublishedFile]) -> dict[int, bytes]:
        """Read all updates; one that cannot be read is refused, unless the directory is away."""
        timings = self._takes.environment.timings
        self._takes(timings.aggregate_seconds + timings.update_seconds * len(files))
        updates: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for shard, file in files.items():
            try:
                updates[shard] = digest_in(self._files.look(file))
            except SharedDirectoryError:
                raise
            except StoreError as error:
                reasons[shard] = str(error)
        if reasons:
            raise UpdatesRefused(reasons)
        return updates


class SimulatedNetwork:
    """A network that evaluates versions."""

    trained_numbers = 1
    numeric_class = ""

    def __init__(self, takes: Takes) -> None:
        self._takes = takes

    def evaluate(
        self,
        parameters: Mapping[str, Array],
        held_out: object = None,  # noqa: ARG002 - the loss is the same on all examples
        reading: object = None,  # noqa: ARG002 - it reads none
    ) -> Evaluation:
        """Return a version's loss."""
        return Evaluation(
            loss=loss_of(digest_of(parameters)),
            metrics={},
            class_accuracy=(),
            samples=1,
            seconds=self._takes(self._takes.environment.timings.evaluate_seconds),
        )

    def close(self) -> None:
        """Do nothing."""


class SimulatedWorkspace(Workspace):
    """A workspace whose journal is in the simulated directory, and whose record has no reader."""

    def look(self) -> None:
        """Do nothing: a folder is never gone alone."""

    def close(self) -> None:
        """Close nothing: the journal is in memory."""

    def finish(self) -> None:
        """Export nothing."""


def open_workspace(takes: Takes, experiment: str, spec: ResolvedSpec) -> SimulatedWorkspace:
    """Open an experiment's workspace, and publish its spec if it is new."""
    folder, disk = Path("shared"), takes.environment.disk
    files = disk.store(experiment)
    if SPEC_NAME not in files:
        files.put_new(SPEC_NAME, [spec.to_toml().encode()])
    patience = disk.timings.patience_seconds
    store = takes.store(experiment, patience, patience)
    space = SimulatedWorkspace(
        experiment=experiment,
        spec=spec,
        shared=SharedDirectory(folder),
        store=store,
        record=RecordReader(folder),
        spec_file=files.describe(SPEC_NAME),
        journal=None,
        token=takes.environment.token,
    )
    space.aggregation = DigestAggregation(spec, store, takes)
    return space


class Preparation:
    """Prepares experiments; the next one fails if a fault says why."""

    def __init__(self, takes: Takes) -> None:
        self.next_failure = ""
        self._takes = takes

    def __call__(self, space: Workspace, command: out.Prepare) -> PreparedExperiment:
        """Publish the first version, unless an earlier manager has made some."""
        timings = self._takes.environment.timings
        self._takes(timings.prepare_seconds)
        if self.next_failure:
            reason, self.next_failure = self.next_failure, ""
            if reason == ASKED_WRONGLY:
                raise SpecError("model", space.spec.model, reason)
            raise StoreError(reason)
        model, outer = command.model, command.outer
        if model is None:
            token = space.token(3)
            if space.spec.outer.keeps_state:
                outer = self._put(space, str(layout.OuterName(0, token)), first_outer)
            model = self._put(space, str(layout.ModelName(0, token)), first_model)
        bounds = np.arange(space.spec.shards + 1) * timings.shard_samples
        return PreparedExperiment(
            dataset_key=dataset(space.spec),
            dataset=cast("Any", _DATA),
            shards=tuple(np.arange(*pair) for pair in pairwise(bounds)),
            held_out=np.arange(0),
            begun=Beginning(
                model=model, outer=outer, drawn=cast("Any", SimulatedNetwork(self._takes))
            ),
            prepare_seconds=0.0,
            split_seconds=0.0,
        )

    def _put(
        self, space: Workspace, name: str, first: Callable[[ResolvedSpec], bytes]
    ) -> PublishedFile:
        return space.store.put_new(name, encode(tensors_of(first(space.spec)), {}))
