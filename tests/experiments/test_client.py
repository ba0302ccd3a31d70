"""What a waiting client tells of an experiment that does not go on."""

from collections.abc import Callable, Iterator

import pytest

from downpour.base.errors import ExperimentFailed
from downpour.base.states import ExperimentState
from downpour.experiments.client import Client
from downpour.network.rpc.messages import ExperimentSummary, Status


class ToldClient(Client):
    """A client whose manager gives these reasons, one after the other, and then fails."""

    def __init__(self, *reasons: str | None) -> None:
        self.reasons = reasons

    def watch(
        self, experiment: str = "", check: Callable[[], None] | None = None
    ) -> Iterator[Status]:
        """Yield a status for each reason."""
        assert check is None
        running = [(ExperimentState.PREPARING, reason) for reason in self.reasons]
        for state, reason in [*running, (ExperimentState.FAILED, "enough")]:
            shown = ExperimentSummary(
                experiment=experiment,
                name="e",
                state=state,
                rounds_done=0,
                rounds_total=2,
                reason=reason,
            )
            yield Status(change=1, experiment=shown)


def test_what_holds_an_experiment_up_is_said_at_once_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And that it goes on; the end has its own line."""
    client = ToldClient(None, "no worker fits", "no worker fits", None)
    with pytest.raises(ExperimentFailed, match="enough"):
        client.wait("e-1")
    assert caplog.messages == ["e-1: no worker fits", "e-1: goes on"]
