"""Updates are summed as they arrive, and nothing but the time depends on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import UpdatesRefused
from downpour.base.values import PublishedFile, Update
from downpour.cluster.manager import work
from downpour.cluster.manager.aggregation import Aggregation
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.status import Roster
from downpour.cluster.manager.workspace import Workspace, Workspaces, open_workspace
from downpour.cluster.options import ManagerOptions
from downpour.core.families import AGGREGATORS
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec_fields import Outer
from downpour.files.aggregators import first_state
from downpour.files.store import (
    DirectoryStore,
    SharedDirectory,
    decode,
    encode,
    layout,
    model_metadata,
)
from downpour.files.store.publish import RetryPolicy
from downpour.host.process import Lanes
from tests.cluster.manager.conftest import Queue
from tests.specs import plain_spec, plain_update

PATIENCE_SECONDS = 60
SHARDS = 5


class CountingStore(DirectoryStore):
    """Notes which files are opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, RetryPolicy(seconds=0))
        self.opened: list[str] = []

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        self.opened.append(file.name)
        return super().read(file, verified=verified)


@dataclass
class Story:
    """An experiment's folder, and the rounds that are made in it."""

    space: Workspace
    model: PublishedFile
    outer: PublishedFile | None = None
    updates: list[Update] = field(default_factory=list)
    round: int = 0

    @property
    def store(self) -> CountingStore:
        assert isinstance(self.space.store, CountingStore)
        return self.space.store

    def begin_round(self) -> None:
        """Have all shards trained from the newest model."""
        random = np.random.default_rng(self.round)
        content = DirectoryStore(self.store.path).read(self.model)
        base = decode(content, "model").tensors["w"]
        steps = random.normal(size=(SHARDS, *base.shape)).astype(np.float32)
        self.updates = [
            update_of(self.store.put_new(f"u{self.round}-{n}", encode({"w": base - step}, {})))
            for n, step in enumerate(steps)
        ]
        self.store.opened.clear()

    def train_again(self, shard: int) -> None:
        """Let a shard have another update."""
        content = encode({"w": np.zeros(5000, "f")}, {})
        self.updates[shard] = update_of(self.store.put_new("again", content))

    def gather(self, shard: int) -> out.Gather:
        return out.Gather(
            experiment="any",
            round=self.round,
            shard=shard,
            update=self.updates[shard],
            model=self.model,
            base=self.model,
        )

    def arrive(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self.space.aggregation.arrived[shard] = self.gather(shard)
        self.space.aggregation.gather()

    def aggregate(self) -> out.Aggregate:
        """Return what the scheduler asks for when all have come."""
        updates = enumerate(self.updates)
        return out.Aggregate(
            experiment="any",
            round=self.round,
            model=self.model,
            outer=self.outer,
            pushes=tuple(out.Push(round=0, shard=n, update=u, base=self.model) for n, u in updates),
            train_seconds=1.0,
        )

    def end_round(self) -> str:
        """Make the next model; returns its checksum."""
        made = work.aggregate(self.space, self.aggregate())
        self.model, self.outer, self.round = made.model, made.outer, self.round + 1
        return made.model.checksum


def update_of(file: PublishedFile) -> Update:
    """Return an update with a file."""
    return plain_update(file, samples=int(file.checksum[:2], 16) + 1)


def opened(folder: Path, **fields: object) -> Story:
    """Open an experiment with a first model."""
    spec = plain_spec(shards=SHARDS, **fields)
    space = open_workspace(SharedDirectory.open(folder, create=True), "any", spec)
    space.store = CountingStore(space.folder)
    space.aggregation = Aggregation(spec, space.store)
    first = {"w": np.random.default_rng(7).normal(size=5000).astype(np.float32)}
    model = space.store.put_new("model-0", encode(first, model_metadata([])))
    outer = None
    if spec.outer.keeps_state:
        state = first_state(spec.outer, first, ["w"])
        outer = space.store.put_new("outer-0", encode(state, {}))
    return Story(space, model, outer)


def made_without(folder: Path, rounds: int = 3, **fields: object) -> list[str]:
    """Make rounds of whose updates none is summed early, each by another manager."""
    story, checksums = opened(folder, **fields), []
    for _ in range(rounds):
        story.begin_round()
        story.space.release()
        checksums.append(story.end_round())
    return checksums


@pytest.mark.parametrize("outer", ["none", "nesterov"])
@pytest.mark.parametrize("rule", AGGREGATORS.examples)
def test_models_are_those_of_rounds_that_were_read_in_the_end(
    tmp_path: Path, rule: str, outer: str
) -> None:
    """In any order of arrival, with and without a manager that began in the middle."""
    fields: dict[str, Any] = {"aggregate": rule, "outer": {"optimizer": outer}}
    story = opened(tmp_path / "early", **fields)
    checksums = []
    for arrivals, restarts in (([4, 0, 1, 2], False), ([3, 2], True), ([], False)):
        story.begin_round()
        for shard in arrivals:
            story.arrive([shard])
        if restarts:
            story.space.release()
            story.arrive([1])
        checksums.append(story.end_round())
    assert checksums == made_without(tmp_path / "late", **fields)


def test_a_round_reads_each_update_once_and_nothing_that_it_has_published(tmp_path: Path) -> None:
    """The model and the outer optimizer's state stay in memory."""
    story = opened(tmp_path, outer=Outer(optimizer="nesterov"))
    for number in range(3):
        story.begin_round()
        updates = [update.file.name for update in story.updates]
        story.arrive([2])
        story.arrive([0, 1])
        assert sorted(story.store.opened[-3:]) == updates[:3]
        story.end_round()
        first = ["model-0", "model-0", "outer-0"] if number == 0 else []
        assert sorted(story.store.opened) == [*first, *updates]


@pytest.mark.parametrize("codec", ["none", "int3"])
def test_a_mean_is_the_version_that_there_would_be_without_an_outer_step(
    tmp_path: Path, codec: str
) -> None:
    """The version itself is the same, with a mean beside it or without."""
    made = []
    for outer, keeps_mean in (("none", False), ("nesterov", False), ("nesterov", True)):
        folder = tmp_path / f"{outer}-{keeps_mean}"
        story = opened(folder, outer={"optimizer": outer}, model_compression=codec)
        story.begin_round()
        command = replace(story.aggregate(), keeps_mean=keeps_mean, versions=(story.model,))
        made.append(work.aggregate(story.space, replace(command, whole=codec == "none")))
    plain, without, beside = made
    assert (plain.mean, without.mean) == (None, None)
    assert beside.mean is not None
    assert beside.mean.name == layout.beside(beside.model.name, layout.MeanName)
    assert beside.mean.checksum == plain.model.checksum
    assert beside.model.checksum == without.model.checksum != plain.model.checksum


def test_a_rounds_only_update_becomes_the_next_version_as_it_is(tmp_path: Path) -> None:
    """Under a second name, if it is sound; with an outer optimizer there is a step to compute."""
    story = opened(tmp_path / "alone")
    story.begin_round()
    (only, other), story.updates = story.updates[:2], story.updates[:1]
    checksum = story.end_round()
    assert checksum == only.file.checksum
    assert (story.space.folder / story.model.name).samefile(story.space.folder / only.file.name)
    story.updates = [replace(only, file=replace(other.file, checksum=only.file.checksum))]
    with pytest.raises(UpdatesRefused, match="checksum"):
        story.end_round()
    infinite = encode({"w": np.full(5000, np.inf, np.float32)}, {})
    story.updates = [update_of(story.store.put_new("infinite", infinite))]
    with pytest.raises(UpdatesRefused, match="NaN or infinity"):
        story.end_round()
    moved = opened(tmp_path / "moved", outer=Outer(optimizer="nesterov"))
    moved.begin_round()
    moved.updates = moved.updates[:1]
    assert moved.end_round() != moved.updates[0].file.checksum


def test_later_rounds_depend_on_no_description_of_a_task(tmp_path: Path) -> None:
    """A version that was an update describes that, also to a manager that takes over."""
    checksums = []
    for takes_over in (False, True):
        story = opened(tmp_path / str(takes_over))
        story.begin_round()
        content = bytes(story.store.read(story.updates[0].file))
        about = {"loss": "0.5", "round": "0"}
        story.updates = [
            update_of(story.store.put_new("told", encode(decode(content, "").tensors, about)))
        ]
        story.end_round()
        story.begin_round()
        if takes_over:
            story.space.release()
        checksums.append(story.end_round())
        assert decode(story.store.read(story.model), "").metadata == {}
    assert checksums[0] == checksums[1]


def test_a_shard_that_was_trained_again_counts_with_its_new_update(tmp_path: Path) -> None:
    """What was summed of the one that was refused is left out."""
    story = opened(tmp_path / "early")
    story.begin_round()
    story.arrive(range(SHARDS - 1))
    story.train_again(1)
    other = opened(tmp_path / "late")
    other.begin_round()
    other.train_again(1)
    assert story.end_round() == other.end_round()


def test_an_update_that_is_gone_is_refused_at_the_end_and_named(tmp_path: Path) -> None:
    """Summed early, a file that is gone harms nothing, and neither does a model that is gone."""
    story = opened(tmp_path)
    story.begin_round()
    story.store.delete(story.updates[2].file.name)
    story.arrive([0, 1, 2])
    with pytest.raises(UpdatesRefused) as refusal:
        story.end_round()
    assert list(refusal.value.reasons) == [2]
    story.space.aggregation.arrived[0] = replace(story.gather(0), model=story.updates[2].file)
    story.space.aggregation.gather()
    story.train_again(2)
    assert story.end_round()


def test_updates_of_an_earlier_round_are_forgotten(tmp_path: Path) -> None:
    """A round that began from another model is another sum."""
    story = opened(tmp_path / "early")
    story.begin_round()
    left = story.gather(3)
    story.end_round()
    story.begin_round()
    story.space.aggregation.arrived[3] = left
    story.arrive([0, 1])
    story.end_round()
    assert story.model.checksum == made_without(tmp_path / "late", rounds=2)[-1]


@pytest.fixture
def events() -> SimpleQueue[on.Event]:
    """Return where answers go."""
    return SimpleQueue()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """Return an experiment."""
    story = opened(tmp_path / "run")
    yield story
    story.space.close()


def test_a_runner_sums_updates_early_and_answers_the_aggregation_alone(
    story: Story, events: SimpleQueue[on.Event], tmp_path: Path
) -> None:
    """However many are asked for at once, each update is read once."""
    spaces = Workspaces([story.space], lambda *_: None, gone_seconds=0.0)
    prepare = partial(work.prepare_after_rehearsal, ManagerOptions(embedded=True))
    queue = Queue(events)
    runner = CommandRunner(spaces, Roster(), queue, Lanes(), prepare, print)
    story.begin_round()
    for shard in range(SHARDS - 1):
        runner.start(story.gather(shard))
    runner.start(story.aggregate())
    made = events.get(timeout=PATIENCE_SECONDS)
    runner.close()
    assert isinstance(made, on.Aggregated)
    assert made.model.checksum == made_without(tmp_path / "late", rounds=1)[0]
    read = [name for name in story.store.opened if name.startswith("u")]
    assert sorted(read) == [update.file.name for update in story.updates]
    assert events.empty()
