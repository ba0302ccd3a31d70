"""What files hold here: short digests in place of parameters.

An update's digest is made of exactly what a shard's training depends on, and a model's of its
updates in shard order and the model they were trained from. So the last model of a run tells
whether each shard was trained in each round from the right model and the right state, and counted
once.
"""

from __future__ import annotations

import xxhash

from downpour.spec import Spec
from downpour.values import PublishedFile, Update


def first_model(spec: Spec) -> bytes:
    """Return what the first model version holds."""
    return _digest("model", str(spec.seed))


def trained(round_number: int, shard: int, model: bytes, state: bytes) -> bytes:
    """Return what training makes of a shard, given a model and an optimizer's state."""
    return _digest("update", str(round_number), str(shard), model.hex(), state.hex())


def state_after(update: bytes) -> bytes:
    """Return the optimizer's state after the training that led to an update."""
    return _digest("state", update.hex())


def paused(round_number: int, shard: int, model: bytes, state: bytes, percent: int) -> bytes:
    """Return the snapshot of a shard's training: what it depends on, and how far it has come."""
    return f"{round_number} {shard} {model.hex()} {state.hex() or '-'} {percent}".encode()


def gone_on(snapshot: bytes) -> tuple[bytes, int]:
    """Return what training makes of a snapshot, and how much of it is done already, in percent."""
    number, shard, model, state, percent = snapshot.decode().split()
    kept = bytes.fromhex(state) if state != "-" else b""
    return trained(int(number), int(shard), bytes.fromhex(model), kept), int(percent)


def folded(model: bytes, updates: list[bytes]) -> bytes:
    """Return what a model and the updates trained from it, in shard order, are folded into."""
    return _digest("model", model.hex(), *(update.hex() for update in updates))


def update_of(
    file: PublishedFile, state: PublishedFile | None, samples: int, seconds: float
) -> Update:
    """Return what is said of an update."""
    return Update(
        file=file,
        samples=samples,
        steps=1,
        loss=0.5,
        load_seconds=0.0,
        train_seconds=seconds,
        publish_seconds=0.0,
        optimizer_state=state,
    )


class FaultFree:
    """What an experiment's files must hold, whatever happens."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._shards = spec.shards or 0
        self._updates: list[list[bytes]] = []
        self._models = [first_model(spec)]

    def model(self, version: int) -> bytes:
        """Return what a model version holds."""
        while len(self._models) <= version:
            self._train_round()
        return self._models[version]

    def update(self, round_number: int, shard: int) -> bytes:
        """Return what the update of a task holds."""
        self.model(round_number + 1)
        return self._updates[round_number][shard]

    def _train_round(self) -> None:
        number, keeps = len(self._updates), self._spec.optimizer_state == "keep"
        former = self._updates[-1] if keeps and self._updates else []
        states = [state_after(update) for update in former] or [b""] * self._shards
        made = [trained(number, s, self._models[-1], states[s]) for s in range(self._shards)]
        self._updates.append(made)
        self._models.append(folded(self._models[-1], made))


def _digest(*parts: str) -> bytes:
    return xxhash.xxh3_128_digest("/".join(parts).encode())
