"""The contents of simulated files: short digests instead of parameters.

An update's digest covers exactly what a shard's training depends on. A model's digest covers its
updates in shard order and the model that the shards trained from. So the last model of a run shows
whether, in every round, each shard trained from the right model and the right state, and counted
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import xxhash

from downpour.base.values import PublishedFile, Update
from downpour.core.spec import ResolvedSpec

_STEP = b"step "
_DIGEST_BYTES = 16

Portion = tuple[int, int]
"""The range of a shard's samples (first, last + 1), if the policy resized its round's shards."""


def dataset(spec: ResolvedSpec) -> str:
    """Return the name of a spec's prepared dataset."""
    return f"{spec.dataset}-{_digest('dataset', spec.dataset).hex()[:16]}"


def first_model(spec: ResolvedSpec) -> bytes:
    """Return the content of the first model version."""
    return _digest("model", str(spec.seed))


def step_file(base: bytes, model: bytes) -> bytes:
    """Return the file of a version that is published as a step from the previous version."""
    return _STEP + base + _difference(base, model)


def is_step(content: bytes) -> bool:
    """Whether a version's file holds a step."""
    return content.startswith(_STEP) and len(content) > _DIGEST_BYTES


def led_to(base: bytes, step: bytes) -> bytes:
    """Return the model to which a step leads from a base, rightly or not."""
    return _difference(base, step[-_DIGEST_BYTES:])


def version_in(content: bytes) -> bytes:
    """Return the model of a version's file, as if we knew all versions."""
    if not is_step(content):
        return content
    return led_to(content[len(_STEP) : -_DIGEST_BYTES], content)


def trained(
    round_number: int,
    shard: int,
    portion: Portion | None,
    share: float,
    model: bytes,
    state: bytes,
) -> bytes:
    """Return the update of a shard that was trained from a model and an optimizer's state."""
    which = f"{shard} {portion}" if portion is not None else str(shard)
    which += f" {share}" if share < 1 else ""
    return _digest("update", str(round_number), which, model.hex(), state.hex())


def moved_by(model: bytes, step: bytes) -> bytes:
    """Return the start of a shard in overlapping rounds: a model plus the shard's last update."""
    return _digest("begun", model.hex(), step.hex())


def state_after(update: bytes) -> bytes:
    """Return the optimizer's state after the training that led to an update."""
    return _digest("state", update.hex())


def paused(
    round_number: int,
    shard: int,
    portion: Portion | None,
    share: float,
    model: bytes,
    state: bytes,
    steps: int,
) -> bytes:
    """Return a snapshot of a shard's training: what it depends on, and its steps so far."""
    first, last = portion or ("-", "-")
    which = f"{round_number} {shard} {first} {last} {share}"
    known = f"{which} {model.hex()} {state.hex() or '-'}"
    return f"{known} {steps}".encode()


def gone_on(snapshot: bytes) -> tuple[bytes, int]:
    """Return the update that follows from a snapshot, and the number of steps in the snapshot."""
    number, shard, first, last, share, model, state, steps = snapshot.decode().split()
    portion = (int(first), int(last)) if first != "-" else None
    kept = bytes.fromhex(state) if state != "-" else b""
    made = trained(int(number), int(shard), portion, float(share), bytes.fromhex(model), kept)
    return made, int(steps)


def folded(model: bytes, updates: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the next model, from a model and the updates trained from it, in shard order."""
    return _digest("model", model.hex(), *(f"{shard} {made.hex()}" for shard, made in updates))


def moved(model: bytes, pushes: Iterable[tuple[int, bytes, float]], *, mixes: bool) -> bytes:
    """Return an asynchronous mode's next model, from updates and their weights, in order."""
    made = (f"{shard} {update.hex()} {weight:.6g}" for shard, update, weight in pushes)
    return _digest("mixed" if mixes else "moved", model.hex(), *made)


def own_after(model: bytes, update: bytes, weight: float) -> bytes:
    """Return a shard's own parameters after its update has met the model."""
    return _digest("own", model.hex(), update.hex(), f"{weight:.6g}")


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


def update_of(
    file: PublishedFile, state: PublishedFile | None, samples: int, steps: int, seconds: float
) -> Update:
    """Return the message about an update."""
    return Update(
        file=file,
        samples=samples,
        steps=steps,
        loss=0.5,
        load_seconds=0.0,
        train_seconds=seconds,
        publish_seconds=0.0,
        optimizer_state=state,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A policy's decisions about a round: the `dropped` shards, and the `sizes` of all shards.

    Sizes are in samples; if there are none, the round is cut as the spec says. `shares` are how
    much of their steps some shards train; the other shards train all steps.
    """

    dropped: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = ()
    shares: frozenset[tuple[int, float]] = frozenset()

    def portion(self, shard: int) -> Portion | None:
        """Return the range of a shard's samples, or None if the policy resized none."""
        if not self.sizes:
            return None
        end = list(accumulate(self.sizes))[shard]
        return end - self.sizes[shard], end

    def share(self, shard: int) -> float:
        """Return how much of its steps a shard trains."""
        return dict(self.shares).get(shard, 1.0)


WHOLE = Cut()
"""A round in which every shard counts."""


class Version:
    """A model version as it must be, with the optimizers' states that belong to it.

    Args:
        spec: the experiment's spec.
        number: how many rounds it contains.
        model: the content of its file.
        states: the optimizers' states by shard, if the spec keeps them.
        outer: the state of the outer optimizer, if there is one.
        before: the version before it, which shards begin from if rounds overlap.
    """

    def __init__(
        self,
        spec: ResolvedSpec,
        number: int,
        model: bytes,
        states: Mapping[int, bytes],
        outer: bytes | None,
        before: Version | None = None,
    ) -> None:
        self.number = number
        self.model = model
        self.outer = outer
        self._spec = spec
        self._states = states
        self._before = before if spec.overlap else None
        self._next: dict[Cut, Version] = {}

    def update(self, shard: int, cut: Cut) -> bytes:
        """Return what the update of a shard must hold in the round after this version."""
        state, start = self._states.get(shard, b""), self.model
        if self._before is not None:
            start = moved_by(self._before.model, self._before.update(shard, WHOLE))
        part = cut.portion(shard), cut.share(shard)
        return trained(self.number, shard, *part, start, state)

    def after(self, cut: Cut = WHOLE) -> Version:
        """Return the version after the next round."""
        if cut not in self._next:
            self._next[cut] = self._folded(cut)
        return self._next[cut]

    def _folded(self, cut: Cut) -> Version:
        shards = [n for n in range(self._spec.shards) if n not in cut.dropped]
        updates = {shard: self.update(shard, cut) for shard in shards}
        keeps = self._spec.hands_on
        states = {shard: state_after(made) for shard, made in updates.items()} if keeps else {}
        model, outer = folded(self.model, updates.items()), self.outer
        if outer is not None:
            model, outer = stepped(self.model, model, outer)
        states = {**self._states, **states}
        return Version(self._spec, self.number + 1, model, states, outer, before=self)


def first_version(spec: ResolvedSpec) -> Version:
    """Return an experiment's first version."""
    outer = first_outer(spec) if spec.outer.keeps_state else None
    return Version(spec, 0, first_model(spec), {}, outer)


def _digest(*parts: str) -> bytes:
    return xxhash.xxh3_128_digest("/".join(parts).encode())


def _difference(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
