"""The contents of simulated files: short digests instead of parameters.

An update's digest covers exactly what a shard's training depends on. A model's digest covers its
updates in shard order and the model that the shards trained from. A file holds its digest as its
only tensor, in the format of all parameter files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import xxhash

from downpour.core.spec import ResolvedSpec
from downpour.files.store import Array, Buffer, decode

_TENSOR = "digest"

Portion = tuple[int, int]
"""The range of a shard's samples: first, last + 1."""


def dataset(spec: ResolvedSpec) -> str:
    """Return the name of a spec's prepared dataset."""
    return f"{spec.dataset}-{_digest('dataset', spec.dataset).hex()[:16]}"


def first_model(spec: ResolvedSpec) -> bytes:
    """Return the digest of the first model version."""
    return _digest("model", str(spec.seed))


def tensors_of(digest: bytes) -> dict[str, Array]:
    """Return a digest as the tensors of a file; callers may change them."""
    return {_TENSOR: np.frombuffer(bytearray(digest), np.uint8)}


def digest_of(tensors: Mapping[str, Array]) -> bytes:
    """Return the digest in the tensors of a file."""
    return tensors[_TENSOR].tobytes()


def digest_in(content: Buffer) -> bytes:
    """Return the digest in the content of a file."""
    return digest_of(decode(content, _TENSOR).tensors)


def trained(
    round_number: int, shard: int, portion: Portion, share: float, model: bytes, state: bytes
) -> bytes:
    """Return the update of a shard that was trained from a model and an optimizer's state."""
    which = f"{shard} {portion[0]} {portion[1]} {share}"
    return _digest("update", str(round_number), which, model.hex(), state.hex())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A policy's decisions about a round: the `dropped` shards, and the `sizes` of all shards.

    Sizes are in samples; if there are none, the round is cut as the spec says. `shares` are how
    much of their steps some shards train; the other shards train all steps.
    """

    dropped: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = ()
    shares: frozenset[tuple[int, float]] = frozenset()

    def portion(self, shard: int, samples: int) -> Portion:
        """Return the range of a shard's samples; uncut, each shard has as many `samples`."""
        if not self.sizes:
            return shard * samples, (shard + 1) * samples
        end = list(accumulate(self.sizes))[shard]
        return end - self.sizes[shard], end

    def share(self, shard: int) -> float:
        """Return how much of its steps a shard trains."""
        return dict(self.shares).get(shard, 1.0)


WHOLE = Cut()
"""A round in which every shard counts."""


class Version:
    """A model version as it must be, with the optimizers' states that belong to it.

    It contains `number` rounds. Each shard has as many `samples` if a round is not cut. `states`
    are by shard, if the spec keeps them. Shards begin from the version `before` if rounds overlap.
    """

    def __init__(
        self,
        spec: ResolvedSpec,
        number: int,
        model: bytes,
        samples: int,
        states: Mapping[int, bytes],
        outer: bytes | None,
        before: Version | None = None,
    ) -> None:
        self.number = number
        self.model = model
        self.outer = outer
        self._spec = spec
        self._samples = samples
        self._states = states
        self._before = before if spec.overlap else None
        self._next: dict[Cut, Version] = {}

    def update(self, shard: int, cut: Cut) -> bytes:
        """Return what the update of a shard must hold in the round after this version."""
        state, start = self._states.get(shard, b""), self.model
        if self._before is not None:
            start = moved_by(self._before.model, self._before.update(shard, WHOLE))
        part = cut.portion(shard, self._samples), cut.share(shard)
        return trained(self.number, shard, *part, start, state)

    def after(self, cut: Cut = WHOLE) -> Version:
        """Return the version after the next round."""
        if cut in self._next:
            return self._next[cut]
        shards = [n for n in range(self._spec.shards) if n not in cut.dropped]
        updates = {shard: self.update(shard, cut) for shard in shards}
        keeps = self._spec.hands_on
        states = {shard: state_after(made) for shard, made in updates.items()} if keeps else {}
        model, outer = folded(self.model, updates.items()), self.outer
        if outer is not None:
            model, outer = stepped(self.model, model, outer)
        states = {**self._states, **states}
        number = self.number + 1
        version = Version(self._spec, number, model, self._samples, states, outer, before=self)
        return self._next.setdefault(cut, version)


def first_version(spec: ResolvedSpec, samples: int) -> Version:
    """Return an experiment's first version; each shard has as many `samples`."""
    outer = first_outer(spec) if spec.outer.keeps_state else None
    return Version(spec, 0, first_model(spec), samples, {}, outer)


def _digest(*parts: str) -> bytes:
    return xxhash.xxh3_128_digest("/".join(parts).encode())
