"""A spec and the workers that there are become what will run, or a line that says why not."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.core.resolve import oddities, resolve
from downpour.core.spec import REQUIRED, Option, Outer, ResolvedSpec, Spec
from tests.specs import plain_spec

NOT_OPEN = Spec(optimizer_state="reset", outer=Outer(optimizer="none"))
"""A spec that leaves nothing to `auto`."""


@pytest.mark.parametrize(
    ("fields", "workers", "shards"),
    [
        ({}, 4, 4),
        ({"standbys": 1}, 4, 3),
        ({"shards": 9}, 4, 9),
        ({"shards": 9}, None, 9),
        ({"shards": 9, "standbys": 3}, None, 9),
    ],
)
def test_every_worker_but_the_standbys_has_a_shard(
    fields: dict[str, int], workers: int | None, shards: int
) -> None:
    """Unless the spec names a number; nothing else of it changes."""
    asked = NOT_OPEN.replace(**fields)
    resolved = resolve(asked, workers)
    assert resolved == ResolvedSpec.make({**asked.model_dump(), "shards": shards})


@pytest.mark.parametrize(("asked", "workers"), [(Spec(shards=6), 2), (Spec(standbys=1), 7)])
def test_as_many_meetings_as_shards(asked: Spec, workers: int) -> None:
    """What `auto` means is fixed with the shards, so that the rounds follow from the spec alone."""
    resolved = resolve(asked.replace(meet="auto", epochs=2), workers)
    assert (resolved.meet, resolved.rounds) == (6, 12)


@pytest.mark.parametrize(("policy", "instead"), [("handoff", "wait"), ("drop", "drop")])
def test_a_task_that_does_not_repeat_is_not_handed_over(policy: str, instead: str) -> None:
    """It has no snapshots to go on from, and the default policy waits."""
    spec = Spec.make({"repeatable": False, "policy": policy})
    resolved = resolve(spec, 3)
    assert (resolved.policy, resolved.snapshot_every) == (instead, 0.0)


@pytest.mark.parametrize(
    ("mode", "options", "every"),
    [("downpour", {}, 4), ("fedbuff", {"k": 3}, 2), ("sync", {}, 1), ("quorum", {"quorum": 2}, 2)],
)
def test_a_delayed_momentum_changes_once_every_shard_has_moved_the_model(
    mode: str, options: dict[str, Option], every: int
) -> None:
    """As many versions as an update of each shard makes, unless the spec says how many."""
    asked: dict[str, Any] = {"mode": mode, "mode_options": options, "shards": 4}
    resolved = resolve(Spec.make({**asked, "outer": {"optimizer": "delayed-nesterov"}}), None)
    assert resolved.outer.every == every
    said = {"optimizer": "delayed-nesterov", "every": 9}
    assert resolve(Spec.make({**asked, "outer": said}), None).outer.every == 9


def test_a_resolved_spec_stays() -> None:
    """Resolving it again, with another number of workers, changes nothing."""
    resolved = resolve(Spec(), 4)
    assert resolve(resolved, 7) == resolved


def test_without_workers_there_is_nothing_to_count() -> None:
    """Then the spec has to name a number."""
    with pytest.raises(SpecError, match="no worker is registered yet; set the number of shards"):
        resolve(Spec(), None)


def test_a_policy_has_its_say() -> None:
    """As many standbys as workers would leave no worker to train."""
    with pytest.raises(SpecError, match="standbys = 4: must be less than the number of workers"):
        resolve(Spec(standbys=4), 4)


def test_an_unresolved_spec_cannot_take_the_place_of_a_resolved_one() -> None:
    """Without a number of shards there is nothing to cut, so no such value can be made."""
    with pytest.raises(SpecError, match="shards"):
        ResolvedSpec.make(Spec().model_dump())
    for name in REQUIRED:
        fields = plain_spec(shards=2).model_dump()
        del fields[name]
        with pytest.raises(SpecError, match=name):
            ResolvedSpec.make(fields)
    with pytest.raises(SpecError, match="shards"):
        plain_spec(shards=2).replace(shards=None)
    with pytest.raises(
        SpecError, match="outer = 'auto': is decided once the number of shards is known"
    ):
        plain_spec(shards=2).replace(outer="auto")


def test_both_are_written_alike() -> None:
    """The same fields in the same order, so that files and journals do not tell them apart."""
    asked = NOT_OPEN.replace(shards=3, split="class")
    assert resolve(asked, 2).to_toml() == asked.to_toml()
    assert [*ResolvedSpec.model_fields] == [*Spec.model_fields]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (plain_spec(shards=2, batch_size=100), []),
        (
            plain_spec(shards=2, batch_size=100_000),
            ["batch_size 100,000 exceeds the 719 examples of the largest shard"],
        ),
        (plain_spec(shards=2, batch_size=719), []),
        (plain_spec(shards=2, policy="replace"), ["policy replace has no standbys"]),
        (plain_spec(shards=2, policy="replace", standbys=1), []),
        (plain_spec(shards=2, policy="late"), []),
    ],
)
def test_settings_without_effect_are_told(spec: ResolvedSpec, said: list[str]) -> None:
    """It is no mistake, but it is rarely what the user meant."""
    assert [line.partition(":")[0] for line in oddities(spec, [718, 719])] == said
