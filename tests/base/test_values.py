"""Small values, and labels."""

import dataclasses
import math

import pytest

from downpour.base.errors import SpecError
from downpour.base.states import Goal
from downpour.base.values import AttemptId, NumericClass, checked_labels, is_bare_name


def test_values_are_named_for_people() -> None:
    """Logs and reports show them as one phrase; attempts sort by round, shard and try."""
    second = AttemptId(experiment="e", round=1, shard=2, attempt=1)
    assert str(second) == "round 1 shard 2 attempt 1"
    assert dataclasses.replace(second, attempt=0) < second
    numeric_class = NumericClass(torch="2.15", device="cpu", instruction_set="AVX512")
    assert str(numeric_class) == "torch 2.15 on cpu (AVX512)"


BARE = "a", "model-3.safetensors", "ünïcode", "a..b", "x" * 200
OTHERS = (
    *("", ".", "..", ".hidden", "a/b", "/etc/passwd", "../x", "a\\b", "a\0b", "a\nb", "x" * 201),
    *("ü" * 128, "a\udc80"),
)


@pytest.mark.parametrize("name", [*BARE, *OTHERS])
def test_a_bare_name_stays_in_its_directory(name: str) -> None:
    """Slashes, leading dots, control characters and long names are refused."""
    assert is_bare_name(name) == (name in BARE)


@pytest.mark.parametrize(
    ("text", "minimised"),
    [
        ("loss", True),
        ("mean_absolute_error", True),
        ("val/rmse", True),
        ("Perplexity", True),
        ("accuracy", False),
        ("top5_accuracy", False),
        ("lossless", False),
        ("min:regret", True),
        ("max:error", False),
        ("min:a:b", True),
    ],
)
def test_a_goal_says_which_of_two_values_is_better(text: str, *, minimised: bool) -> None:
    """By the words of its name, or as it is written; what is no number is never better."""
    goal = Goal.of(text)
    assert goal.minimised == minimised
    assert Goal.of(str(goal)) == goal
    better, worse = (0.1, 0.2) if minimised else (0.2, 0.1)
    assert goal.rank(better) > goal.rank(worse) > goal.rank(None)
    assert {goal.rank(odd) for odd in (math.nan, math.inf, -math.inf)} == {goal.rank(None)}


@pytest.mark.parametrize("text", ["", "min:", " ", "a\nb", " loss"])
def test_a_goal_without_a_metric_is_refused(text: str) -> None:
    """Whoever reads it from a file says which field it was."""
    with pytest.raises(ValueError, match="names no metric"):
        Goal.of(text)


def test_labels_are_keys_and_values() -> None:
    """A value may be empty, or hold what it likes."""
    labels = ["rack=3", "gpu.kind=H200 = fast", "spare="]
    assert checked_labels(labels) == tuple(labels)
    assert checked_labels([]) == ()


@pytest.mark.parametrize(
    "labels",
    [["rack"], ["=3"], ["a b=3"], ["a=\x1b[2J"], ["a=" + "x" * 63], ["a=1", "a=2"], ["a=1"] * 17],
)
def test_a_malformed_label_is_refused(labels: list[str]) -> None:
    """Nor may a key come twice, or a hundred of them."""
    with pytest.raises(SpecError, match="label = "):
        checked_labels(labels)
