"""Values that everything passes around, and errors of one line."""

import copy
import dataclasses
import math

import pytest

from downpour.base import errors
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


EXAMPLES: list[tuple[errors.DownpourError, str, int]] = [
    (errors.SpecError("epochs", 0, "must be above 0"), "epochs = 0: must be above 0", 2),
    (errors.SpecError("name", "a\nb", "one line"), r"name = 'a\nb': one line", 2),
    (errors.SharedDirectoryError("/s", "not writable"), "shared directory /s: not writable", 2),
    (errors.FileMissing("model-3"), "model-3: no such file in the shared directory", 1),
    (errors.FileCorrupt("model-3", "too short"), "model-3: too short", 1),
    (errors.Unreachable("host:1", "refused"), "host:1 cannot be reached: refused", 2),
    (errors.Refused("shards", "at least 1"), "shards: at least 1", 2),
    (
        errors.FailStop("KeyError: 3"),
        "the manager stops because of a bug in Downpour: KeyError: 3",
        1,
    ),
    (errors.ExperimentFailed("e-1", "no luck"), "experiment e-1 failed: no luck", 1),
    (errors.ExperimentFailed("e-1", "no", asked_wrongly=True), "experiment e-1 failed: no", 2),
    (errors.NotBegun("e-1", "epochs = 0: no", asked_wrongly=True), "epochs = 0: no", 2),
    (
        errors.MissingPackage("a data frame", "pandas", "frames"),
        "a data frame needs pandas; install downpour-sgd[frames]",
        2,
    ),
    (
        errors.IllegalTransition("task 3", "done", "assign", ("assigned", "done")),
        "task 3: no step 'assign' from 'done' (story: assigned, done)",
        1,
    ),
]


@pytest.mark.parametrize(("error", "line", "status"), EXAMPLES)
def test_an_error_reads_as_one_line(error: errors.DownpourError, line: str, status: int) -> None:
    """The line says what happened to whom; the exit status says whether the user can mend it."""
    assert str(error) == line
    assert error.exit_status == status
    assert str(copy.copy(error)) == line


def test_a_long_value_is_cut() -> None:
    """A value never floods the line it is shown in."""
    assert len(str(errors.SpecError("name", "x" * 10_000, "shorter"))) < 120
