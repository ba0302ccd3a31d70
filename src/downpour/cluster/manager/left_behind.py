"""The shards' states that an ended experiment leaves for an experiment that continues it.

These are the states of the shards' optimizers. If rounds overlap, they also include each shard's
last update, and the version that the next round's tasks begin from. The new experiment takes
copies, because users may remove either experiment before the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from downpour.base.values import AttemptId, PublishedFile
from downpour.core.scheduler.events import HandedOn
from downpour.core.spec import Spec
from downpour.files.spec_file import read_spec
from downpour.files.store import DirectoryStore, Store, layout
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.model_steps import whole_content

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

    By shard, `states` are the files of the optimizers' states, and `steps` those of the last
    updates.
    """

    states: Mapping[int, Path] = field(default_factory=dict)
    steps: Mapping[int, Path] = field(default_factory=dict)
    former: Path | None = None

    def checksum(self) -> str | None:
        """Return a checksum of all files and their roles; None without files."""
        digest, count = xxhash.xxh3_128(), 0
        for what, path in self._files():
            count += 1
            digest.update(f"{what} ".encode())
            digest.update(read_regular(path))
        return digest.hexdigest() if count else None

    def _files(self) -> Iterator[tuple[str, Path]]:
        yield from ((str(shard), path) for shard, path in sorted(self.states.items()))
        yield from ((f"step {shard}", path) for shard, path in sorted(self.steps.items()))
        if self.former is not None:
            yield "former", self.former

    def publish(self, store: Store) -> HandedOn:
        """Publish copies, named as if the first round had left the files."""
        former = None
        if self.former is not None:
            # Don't name it as a model version, because an experiment has only one of each number.
            name = layout.own_name(0, 0, secrets.token_hex(3))
            # Publish it whole, because the versions whose steps lead to it belong to another
            # experiment.
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
    return tuple((n, _copied(store, kind, n, path)) for n, path in sorted(files.items()))


def _copied(store: Store, kind: layout.AttemptKind, shard: int, path: Path) -> PublishedFile:
    begun = AttemptId(experiment="", round=0, shard=shard, attempt=0)
    name = layout.attempt_name(kind, begun, secrets.token_hex(3))
    return store.put_new(name, [read_regular(path)])


def left_behind(spec: Spec, model: Path, version: int) -> LeftBehind:
    """Return the files next to a model version, for a spec that continues from it.

    If a relevant field differs, such as the number of shards, or if a file is missing, this returns
    no files. Then all shards start without states.

    Raises:
        SpecError: the spec there is unreadable.
        StoreError: the folder cannot be listed.
    """
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
