"""A spec and the workers that there are become what will run, and `auto` is explained."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.modes import MODES
from downpour.core.resolve import (
    LocalOptimizer,
    decided_in,
    explained,
    oddities,
    resolve,
    rounds_at_most,
    with_meetings,
)
from downpour.core.spec import REQUIRED, ResolvedSpec, Spec
from downpour.core.spec_fields import Option, Outer
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


@pytest.mark.parametrize(
    ("examples", "shards", "meet"),
    [
        ([1500, 1500], 2, 4),  # 47 batches of 32
        ([6000] * 10, 10, 10),  # 188 batches: a round of each shard leaves 18 steps
        ([2000] * 10, 10, 6),  # 63 batches
        ([144] * 10, 10, 4),  # 5 batches: ten steps a round are too many to ask for
        ([64, 65], 2, 2),  # a batch in each round of the smaller shard
        ([1, 1], 2, 1),
    ],
)
def test_shards_of_sgd_meet_often(examples: list[int], shards: int, meet: int) -> None:
    """As often as the batches of the smallest shard allow, once these are known."""
    resolved = resolve(Spec(batch_size=32, epochs=2), shards)
    assert (resolved.meet, resolved.rounds, rounds_at_most(resolved)) == (
        "auto",
        2,
        2 * max(4, shards),
    )
    cut = with_meetings(resolved, examples)
    assert (cut.meet, cut.rounds, rounds_at_most(cut)) == (meet, 2 * meet, 2 * meet)
    assert with_meetings(cut, [9, 9]) == cut


@pytest.mark.parametrize(
    "fields",
    [
        {"shards": 1},
        {"optimizer": "adam"},
        {"mode": "downpour"},
        {"overlap": 1},
        {"policy": "rebalance"},
        {"compression": "int8"},
        {"compression": "int8", "model_compression": "int8"},
        {"local_steps": 3},
        {"rounds_before": 2, "init_from": "before"},
    ],
)
def test_all_others_meet_once_an_epoch(fields: dict[str, Any]) -> None:
    """They lose by more meetings, pay in bytes, or count in epochs; a named number stays."""
    assert resolve(Spec.make(fields), 4).meet == 1
    assert resolve(Spec(meet=2), 4).meet == 2


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
        (
            plain_spec(shards=2, aggregate="median", compression="topk"),
            ["aggregate median drops numbers that few updates have"],
        ),
        (plain_spec(shards=2, aggregate="median", compression="int8"), []),
    ],
)
def test_settings_without_effect_are_told(spec: ResolvedSpec, said: list[str]) -> None:
    """It is no mistake, but it is rarely what the user meant."""
    assert [line.partition(":")[0] for line in oddities(spec, [718, 719])] == said


def resolved_outer(shards: int, **fields: Any) -> tuple[str, float]:
    """Return the outer optimizer of a resolved spec, and its momentum; 0 where there is none."""
    outer = resolve(Spec.make({"outer": "auto", **fields}), shards).outer
    return outer.optimizer, outer.momentum if outer.keeps_state else 0.0


@given(momentum=st.floats(0.0, 0.99), shards=st.integers(1, 1000))
def test_both_momentums_together_do_not_overshoot(momentum: float, shards: int) -> None:
    """Whatever the local momentum, and however many shards there are."""
    optimizer, outer = resolved_outer(shards, momentum=momentum)
    assert outer <= (0.8 if shards > 1 else 0.0)
    # Rounded to two digits, as people read it.
    assert optimizer == "none" or (1 - momentum) * (1 - outer) >= 0.15 - 0.005


@pytest.mark.parametrize(
    ("shards", "momentum", "outer"),
    [
        (1, 0.0, ("none", 0.0)),
        (2, 0.0, ("nesterov", 0.6)),
        (2, 0.5, ("nesterov", 0.6)),
        (10, 0.0, ("nesterov", 0.8)),
        (10, 0.5, ("nesterov", 0.7)),
        (3, 0.0, ("nesterov", 0.73)),
        (10, 0.8132, ("nesterov", 0.2)),
        (10, 0.9, ("none", 0.0)),
    ],
)
def test_more_shards_and_less_momentum_of_their_own_want_more(
    shards: int, momentum: float, outer: tuple[str, float]
) -> None:
    """A local momentum of 0.9, the default, leaves nothing to add."""
    assert resolved_outer(shards, momentum=momentum) == outer


@pytest.mark.parametrize(
    ("shards", "meet", "momentum"), [(2, 1, 0.5), (3, 1, 0.67), (2, 3, 0.5), (2, 4, 0.6)]
)
def test_few_shards_want_more_if_they_meet_often(shards: int, meet: int, momentum: float) -> None:
    """Who names what `auto` would choose gets the same training."""
    assert resolved_outer(shards, momentum=0.0, meet=meet) == ("nesterov", momentum)


@pytest.mark.parametrize("split", ["class", "dirichlet(0.3)"])
def test_shards_that_differ_get_no_momentum_of_their_rounds(split: str) -> None:
    """Those that are alike do, with the same local momentum."""
    assert resolved_outer(4, momentum=0.0, split=split)[0] == "none"
    assert resolved_outer(4, momentum=0.0, split="equal")[0] == "nesterov"


@pytest.mark.parametrize(
    ("fields", "shards", "line"),
    [
        ({"mode": "ssp"}, 5, "needs all updates of a round, but mode 'ssp' has no rounds"),
        ({}, 2, "needs at least 3 updates in a round, not 2"),
        (
            {"mode": "k-sync", "mode_options": {"k": 2}},
            5,
            "needs at least 3 updates in a round, not 2",
        ),
    ],
)
def test_a_statistic_needs_rounds_of_enough_updates(
    fields: dict[str, Any], shards: int, line: str
) -> None:
    """Weights need neither; the median is that of any number of updates."""
    spec = Spec.make({"aggregate": "trimmed-mean(0.2)", **fields})
    with pytest.raises(SpecError) as refused:
        resolve(spec, shards)
    assert str(refused.value) == f"aggregate = 'trimmed-mean(0.2)': {line}"
    assert resolve(spec.replace(aggregate="samples"), shards)
    assert resolve(Spec(aggregate="median"), 1)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_is_left_as_it_is(optimizer: str) -> None:
    """Where it begins anew it takes larger steps, which some tasks gain by."""
    resolved = resolve(Spec.make({"optimizer": optimizer}), 10)
    assert (resolved.optimizer_state, resolved.outer.optimizer) == ("reset", "none")


@pytest.mark.parametrize("mode", [*MODES])
def test_only_shards_in_step_get_momentum_of_their_rounds(mode: str) -> None:
    """Elsewhere a delay acts as one already, and where rounds overlap it is not known to help."""
    spec = Spec.make({"mode": mode, "momentum": 0.0, "outer": "auto"})
    assert resolve(spec, 4).outer.keeps_state == spec.in_step
    if mode == "sync":
        assert not resolve(spec.replace(overlap=1), 4).outer.keeps_state


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "keep"),
        ({"mode": "downpour"}, "keep"),
        ({"mode": "k-async"}, "reset"),
        ({"split": "equal"}, "keep"),
        ({"split": "class"}, "keep"),
        ({"split": "dirichlet(0.3)"}, "keep"),
        ({"policy": "rebalance"}, "reset"),
        ({"compression": "int8"}, "reset"),
        ({"policy": "rebalance", "optimizer_state": "reset"}, "reset"),
        ({"mode": "k-async", "optimizer_state": "keep"}, "keep"),
    ],
)
def test_a_shards_momentum_goes_on_unless_it_cannot_or_should_not(
    fields: dict[str, Any], state: str
) -> None:
    """A state that a spec names is never changed."""
    spec = Spec.make({"optimizer_state": "auto", **fields})
    assert resolve(spec, 4).optimizer_state == state


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("fields", [{}, {"mode": "k-async"}, {"compression": "int8"}])
def test_one_shard_is_a_plain_training(optimizer: str, fields: dict[str, Any]) -> None:
    """Its optimizer, or a task's own, goes on whatever trains better with more shards."""
    spec = Spec.make({"optimizer": optimizer, "shards": 1, **fields})
    assert resolve(spec, None).optimizer_state == "keep"
    own = spec.replace(task="lab:Mine")
    assert resolve(own, None, trainer=LocalOptimizer(momentum=None)).optimizer_state == "keep"
    assert resolve(spec.replace(policy="rebalance", mode="sync"), 2).optimizer_state == "reset"


@pytest.mark.parametrize(
    ("momentum", "state", "outer"),
    [(None, "reset", "none"), (0.9, "keep", "none"), (0.5, "keep", "nesterov")],
)
@pytest.mark.parametrize("named", ["sgd", "adamw"])
def test_a_task_s_own_optimizer_decides(
    momentum: float | None, state: str, outer: str, named: str
) -> None:
    """Whatever optimizer the spec names, for that does not train."""
    spec = Spec.make({"task": "lab:Mine", "optimizer": named})
    resolved = resolve(spec, 4, trainer=LocalOptimizer(momentum=momentum))
    assert (resolved.optimizer_state, resolved.outer.optimizer) == (state, outer)
    assert str(explained(spec, resolved)).endswith("mode sync, the optimizer that lab:Mine takes)")


def test_decided_values_are_explained_in_a_line() -> None:
    """It names the fields that were open, and what they follow from."""
    asked = Spec.make({"optimizer_state": "auto", "outer": "auto", "meet": "auto", "momentum": 0.5})
    assert explained(asked, resolve(asked, 4)) == (
        "auto: optimizer_state = keep, outer.optimizer = nesterov with momentum 0.7, meet = 4 "
        "or more, as a shard's batches allow (4 shards, split random, mode sync, optimizer sgd "
        "with momentum 0.5)"
    )
    overlapping = Spec.make({"overlap": 1, "optimizer": "adam"})
    assert str(explained(overlapping, resolve(overlapping, 4))).endswith(
        "(4 shards, split random, mode sync, overlap 1, optimizer adam)"
    )
    for shards, counted in ((1, "(1 shard, "), (2, "(2 shards, ")):
        assert counted in str(explained(overlapping, resolve(overlapping, shards)))
    closed = Spec.make({"optimizer_state": "keep", "outer": {"optimizer": "sgd"}, "meet": 1})
    assert explained(closed, resolve(closed, 4)) is None


def test_a_decision_stands_when_it_is_asked_for_again() -> None:
    """The number of workers may have changed since. Fields that the spec names are left alone."""
    asked = Spec.make({"optimizer_state": "auto", "outer": "auto", "meet": 3})
    known = resolve(asked, 2)
    again = decided_in(asked, known)
    open_ones = {"optimizer_state": known.optimizer_state, "outer": known.outer, "device": "auto"}
    assert again == open_ones
    closed = known.replace(device="cpu")
    assert decided_in(closed, closed) == {}


def test_processes_that_share_a_batch_have_the_cpu() -> None:
    """They share the cores of a machine, whatever accelerators it has; the line says so."""
    closed = {"optimizer_state": "keep", "outer": "none", "meet": 1}
    asked = Spec.make({"inside": {"processes": 2}, **closed})
    resolved = resolve(asked, 2)
    assert (asked.device, resolved.device) == ("auto", "cpu")
    line = "auto: device = cpu, because workers have several processes ("
    assert str(explained(asked, resolved)).startswith(line)
    assert resolve(Spec.make({}), 2).device == "auto", "each worker takes its best"
    asked = Spec.make({"task": "lab:trainer", "outer": "none", "meet": 1})
    line = str(explained(asked, resolve(asked, 2).replace(device="cpu")))
    assert "device = cpu, as lab:trainer says (" in line
