"""What a spec asks of a policy is checked before anything starts."""

from dataclasses import replace

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.core.stragglers.base import POLICIES, ROUNDS_REMEMBERED, Policy, check_policy

SOME = Policy(decide=lambda _: [], options={"share": 0.5, "count": 3, "eager": False})
CUTS = Policy(decide=lambda _: [], cuts_rounds=True)


@pytest.mark.parametrize(
    "options", [{}, {"share": 0.7}, {"share": 1}, {"share": 0}, {"count": 4}, {"eager": True}]
)
def test_options_of_their_kind_are_taken(options: dict[str, object]) -> None:
    """A whole number is a number, too."""
    check_policy(Spec.make({"policy_options": options}), SOME, workers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": 0.7}, "policy_options.shares = 0.7: .* it has: share, count, eager"),
        ({"share": "much"}, "policy_options.share = 'much': must have the type of its default"),
        ({"share": True}, "must have the type of its default, 0.5"),
        ({"eager": 1}, "must have the type of its default, False"),
        ({"count": -1}, "must not be negative"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], message: str) -> None:
    """One line says which and what is accepted."""
    with pytest.raises(SpecError, match=message):
        check_policy(Spec.make({"policy_options": options}), SOME, workers=1)


def test_a_package_registers_a_policy_and_nothing_else() -> None:
    """The line names the package's member, rather than an error inside Downpour."""
    with pytest.raises(SpecError, match="policy = 'mine': must be a Policy, but its package has 3"):
        check_policy(Spec.model_construct(policy="mine"), 3, workers=1)  # type: ignore[arg-type]


def test_a_blacklist_looks_back_no_further_than_is_remembered() -> None:
    """It would wait for more rounds than it is ever shown, and leave no worker out."""
    options = {"rounds": ROUNDS_REMEMBERED}
    check_policy(Spec.make({"policy_options": options}), POLICIES["blacklist"], workers=3)
    options = {"rounds": ROUNDS_REMEMBERED + 1}
    with pytest.raises(SpecError, match=r"policy_options.rounds = 17: must be at most 16"):
        check_policy(Spec.make({"policy_options": options}), POLICIES["blacklist"], workers=3)


def test_there_are_fewer_standbys_than_workers() -> None:
    """Otherwise no worker would be left to train."""
    check_policy(Spec(standbys=2), replace(SOME, watches=True), workers=3)
    with pytest.raises(
        SpecError, match=r"standbys = 3: must be less than the number of workers, 3"
    ):
        check_policy(Spec(standbys=3), SOME, workers=3)


def test_a_policy_that_only_waits_has_no_standbys() -> None:
    """They would be kept free, and never be called."""
    with pytest.raises(
        SpecError, match=r"standbys = 1: must be 0, because policy 'wait' never uses standbys"
    ):
        check_policy(Spec(policy="wait", standbys=1), SOME, workers=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"split": "class"},
        {"optimizer_state": "keep"},
        {"compression": "topk"},
        {"meet": 2},
    ],
)
def test_rounds_are_cut_anew_only_where_shards_do_not_differ(fields: dict[str, object]) -> None:
    """One of a class, with a state of its own or trained in parts cannot be any other."""
    check_policy(Spec(), CUTS, workers=3)
    with pytest.raises(SpecError, match="recuts the shards"):
        check_policy(Spec.make(fields), CUTS, workers=3)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policys_own_options_are_taken(name: str) -> None:
    """Who writes down what holds anyway changes nothing."""
    options = dict(POLICIES[name].options)
    check_policy(Spec.make({"policy_options": options}), POLICIES[name], workers=4)
