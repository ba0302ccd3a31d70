"""What every mode must keep to, whatever its options and however many shards there are."""

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.modes import MODES, Mode, ModeKind, check_mode, count_of, mode_of
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.core.spec_fields import Option
from tests.specs import plain_spec

EVERY_MODE = pytest.mark.parametrize("kind", MODES.values(), ids=MODES)
ASYNCHRONOUS = [name for name in MODES if not Spec.make({"mode": name}).in_step]


@EVERY_MODE
@given(shards=st.integers(1, 1000))
def test_a_version_is_made_of_some_updates_and_of_no_more_than_there_are(
    kind: ModeKind, shards: int
) -> None:
    """A mode that waited for more updates than shards can bring would never make a version."""
    mode = kind.make(kind.options, shards)
    assert mode.together is None or 1 <= mode.together <= shards
    assert mode.ahead is None or mode.ahead >= 0
    assert mode.enough is None or 1 <= mode.enough <= shards


@EVERY_MODE
@given(younger=st.integers(0, 10_000), older=st.integers(0, 10_000))
def test_an_older_update_never_counts_more(kind: ModeKind, younger: int, older: int) -> None:
    """The weight is above 0 and at most 1, and falls with staleness or stays."""
    weight = kind.make(kind.options, 4).weight
    younger, older = sorted((younger, older))
    assert 0 < weight(older) <= weight(younger) <= 1
    assert isfinite(weight(older))


@pytest.mark.parametrize(
    ("mode", "options", "sentence"),
    [
        ("sync", {"bound": 1}, "mode 'sync' has no such option; it has: none"),
        ("ssp", {"bound": -1}, "must be a number of at least 0"),
        ("ssp", {"bound": "two"}, "must be a number of at least 0"),
        ("ssp", {"bound": True}, "must be a number of at least 0"),
        ("ssp", {"bound": 1.5}, "must be a whole number of rounds"),
        ("ssp", {"limit": 1}, "it has: bound, step, staleness, decay, grace"),
        ("downpour", {"staleness": "cubic"}, "must be constant, polynomial or hinge"),
        ("downpour", {"decay": -0.5}, "must be a number of at least 0"),
        ("downpour", {"step": "half"}, "must be mean, root or whole"),
        ("fedasync", {"alpha": 0}, "must be above 0 and at most 1"),
        ("fedasync", {"alpha": 1.5}, "must be above 0 and at most 1"),
        ("easgd", {"beta": 0}, "must be above 0 and at most 1"),
        ("easgd", {"beta": 1.1}, "must be above 0 and at most 1"),
        ("easgd", {"alpha": 0.1}, "it has: beta"),
        ("k-sync", {"k": -1}, "must be a number of at least 0"),
        ("k-sync", {"staleness": "hinge"}, "it has: k"),
        ("quorum", {"quorum": "half"}, "must be a number of at least 0"),
        ("quorum", {"quorum": 0}, "must be above 0: a share, or a count"),
        ("fedbuff", {"k": 0}, "must be above 0: a share, or a count"),
        ("quorum", {"grace_seconds": -1}, "must be a number of at least 0"),
        ("fedbuff", {"k": -1}, "must be a number of at least 0"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(
    mode: str, options: dict[str, float | str], sentence: str
) -> None:
    """The line says which option, and what is accepted."""
    with pytest.raises(SpecError, match=rf"^mode_options\.\w+ = .*{sentence}"):
        resolve(Spec.make({"mode": mode, "mode_options": options}), 3)


@pytest.mark.parametrize("mode", ASYNCHRONOUS)
@pytest.mark.parametrize("fields", [{"policy": "drop"}, {"stop_after": 2}])
def test_fields_that_need_shards_in_step_are_refused(mode: str, fields: dict[str, object]) -> None:
    """A policy that closes or cuts rounds has none, and no round is the last one alone."""
    with pytest.raises(SpecError, match=f"mode '{mode}' has no rounds"):
        check_mode(Spec.make({"mode": mode, **fields}))


@pytest.mark.parametrize(
    ("mode", "fields", "sentence"),
    [
        ("easgd", {"outer": {"optimizer": "nesterov"}}, "moves the model as far as the shard"),
        ("easgd", {"compression": "int8"}, "moves toward whole updates"),
        ("fedasync", {"compression": "int8"}, "moves toward whole updates"),
    ],
)
def test_fields_that_a_mode_lacks_are_refused(
    mode: str, fields: dict[str, object], sentence: str
) -> None:
    """A mode that moves towards updates needs them whole, and alone decides how far."""
    with pytest.raises(SpecError, match=rf"mode '{mode}' {sentence}"):
        check_mode(Spec.make({"mode": mode, **fields}))


@pytest.mark.parametrize(
    ("k", "shards", "together"),
    [(0.28, 25, 7), (0.281, 25, 8), (0.0, 5, 1), (1, 5, 5), (1.5, 5, 1), (3, 5, 3), (9, 5, 5)],
)
def test_a_number_of_shards_is_a_share_or_a_count(k: float, shards: int, together: int) -> None:
    """Up to 1 it is a share, rounded up; 0.28 of 25 are 7, though floats make it a little more."""
    assert count_of(k, shards) == together


POLYNOMIAL = (1.0, 4**-0.5, 7**-0.5)
HINGE = {"staleness": "hinge", "decay": 1.0}


@pytest.mark.parametrize(
    ("mode", "options", "versions", "weights"),
    [
        ("sync", {}, Mode(together=None, ahead=0), (1, 1, 1)),
        ("k-sync", {}, Mode(together=None, ahead=0, enough=9), (1, 1, 1)),
        ("downpour", {}, Mode(together=1, ahead=None), (0.1, 0.1, 0.1)),
        ("downpour", {"step": "root"}, Mode(together=1, ahead=None), (10**-0.5,) * 3),
        ("downpour", {"step": "whole", **HINGE}, Mode(together=1, ahead=None), (1, 1, 1 / 3)),
        ("ssp", {"staleness": "hinge"}, Mode(together=1, ahead=2), (0.1, 0.1, 0.05)),
        ("easgd", {}, Mode(together=1, ahead=None, mixes=True, elastic=True), (0.09,) * 3),
        (
            "fedasync",
            {},
            Mode(together=1, ahead=None, mixes=True),
            tuple(0.6 * weight for weight in POLYNOMIAL),
        ),
        ("fedbuff", {}, Mode(together=5, ahead=None), POLYNOMIAL),
        ("k-async", {}, Mode(together=5, ahead=None), (1, 1, 1)),
        ("quorum", {}, Mode(together=5, ahead=None, grace_seconds=0.5), POLYNOMIAL),
    ],
)
def test_a_mode_makes_versions_as_its_paper_has_it(
    mode: str, options: dict[str, Option], versions: Mode, weights: tuple[float, ...]
) -> None:
    """Of ten shards, by weights of updates 0, 3 and 6 versions old; a hinge bends after 4."""
    made = mode_of(plain_spec(mode=mode, mode_options=options, shards=10))
    assert replace(made, weight=versions.weight) == versions
    kinds = (mode in {"easgd", "fedasync"}, mode == "easgd", False)
    assert (made.mixes, made.elastic, made.overlaps) == kinds
    assert [made.weight(age) for age in (0, 3, 6)] == pytest.approx(weights)


@pytest.mark.parametrize("fields", [{"mode": "k-sync"}, {"policy": "late"}, {"stop_after": 2}])
def test_rounds_overlap_only_where_nothing_else_ends_them(fields: dict[str, object]) -> None:
    """The next round has begun by then."""
    check_mode(Spec.make({"overlap": 1}))
    with pytest.raises(SpecError, match="overlap = 1: must be 0"):
        check_mode(Spec.make({"overlap": 1, **fields}))


def test_a_mode_that_raises_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a package's own, in which a number is text."""
    kind = ModeKind(make=lambda _options, _shards: Mode(together=int("two"), ahead=0))
    monkeypatch.setattr("downpour.core.modes.MODES", {"mine": kind})
    spec = plain_spec(shards=2).model_copy(update={"mode": "mine"})
    with pytest.raises(SpecError, match=r"mode = 'mine': its make\(\) raised ValueError: .*'two'"):
        mode_of(spec)
