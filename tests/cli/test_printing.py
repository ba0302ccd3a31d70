"""Where commands print."""

from __future__ import annotations

import pytest

from downpour.cli.printing import check_format, note, with_spec_shown
from downpour.errors import SpecError
from downpour.rpc.messages import ExperimentState, ExperimentSummary, Status
from downpour.spec import Spec


def test_two_formats_at_once_are_refused() -> None:
    """One output, one format."""
    check_format(as_json=True, as_csv=False)
    check_format(as_json=False, as_csv=True)
    with pytest.raises(SpecError, match="--json --csv"):
        check_format(as_json=True, as_csv=True)


def test_notes_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Long ones are not broken and brackets are no markup."""
    note("[red]" + "x" * 200)
    assert capsys.readouterr() == ("", "[red]" + "x" * 200 + "\n")


def during(state: ExperimentState) -> Status:
    """Make the status of an experiment in a state."""
    experiment = ExperimentSummary(
        experiment="any", name="any", state=state, rounds_done=0, rounds_total=1
    )
    return Status(change=1, experiment=experiment)


def test_the_spec_that_was_made_is_shown_once_training_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As TOML that makes it again; every status is shown, too."""
    spec = Spec(shards=3, split="dirichlet(0.5)", model_options={"dropout": 0.1})
    seen: list[Status] = []
    show = with_spec_shown(spec, seen.append)
    early = [during(ExperimentState.WAITING), during(ExperimentState.PREPARING)]
    late = [during(ExperimentState.RUNNING), during(ExperimentState.FINISHED)]
    for status in early:
        show(status)
    assert capsys.readouterr().err == ""
    for status in late:
        show(status)
    assert Spec.from_toml(capsys.readouterr().err) == spec
    assert seen == early + late


def test_an_experiment_that_never_trains_shows_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason stands alone, in one line."""
    with_spec_shown(Spec(), lambda _: None)(during(ExperimentState.FAILED))
    assert capsys.readouterr().err == ""
