"""Epochs as the metrics of a Trackio run, in Trackio's folder on this machine."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, redirect_stdout

from downpour.experiments.loggers.base import LoggedRun, ending_of, scalars_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult
from downpour.host.extras import require


class TrackioRun:
    """Logs into Trackio's local folder, or to the place that Trackio's own settings name.

    The first experiment of a training names the run, so a resumed experiment continues it.

    Args:
        target: The project; by default the spec's name.

    Raises:
        MissingPackage: trackio is not installed.
    """

    def __init__(self, target: str) -> None:
        require("--log trackio", "trackio")
        self._project = target

    def begin(self, run: LoggedRun) -> None:
        """Begin a run, or continue the run of the experiment that this one resumes."""
        import trackio

        self._run = run
        with _quiet():
            self._log = trackio.init(
                project=self._project or run.name,
                name=run.first,
                config=dict(run.spec),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, epoch: RoundResult) -> None:
        """Log an epoch at its number."""
        self._log.log(scalars_of(self._run, epoch), step=epoch.epoch)

    def end(self, result: Result) -> None:
        """Log the final numbers, and finish the run."""
        import trackio

        last = self._run.epochs_before + len(result.epochs)
        self._log.log(ending_of(result), step=last)
        with _quiet():
            trackio.finish()


def _quiet() -> AbstractContextManager[object]:
    """Keep Trackio's prints away from standard output, which is for results."""
    return redirect_stdout(sys.stderr)
