"""The one tree of errors: every error one line, exit statuses as promised."""

import copy

import pytest

from downpour.base import errors

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
