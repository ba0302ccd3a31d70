"""Epochs as the metrics of an MLflow run."""

from __future__ import annotations

from typing import Any

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentState
from downpour.experiments.loggers.base import LoggedRun, ending_of, scalars_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult
from downpour.host.extras import require
from downpour.host.text import shortened

_TAG = "downpour.experiment"
_VALUE_LETTERS_MAX = 6000
_STATUS = {ExperimentState.FINISHED: "FINISHED", ExperimentState.CANCELLED: "KILLED"}


class MlflowRun:
    """Logs to the tracking server that MLflow's own settings name, or to the target.

    The spec's name is the name of the MLflow experiment. A tag of the run has the identifier of the
    first experiment of a training, so a resumed experiment finds the run again and continues it.

    Args:
        target: A tracking URI, such as http://HOST:PORT or sqlite:///FILE; by default MLflow's own.

    Raises:
        MissingPackage: MLflow is not installed.
        SpecError: MLflow refuses the URI.
    """

    def __init__(self, target: str) -> None:
        require("--log mlflow", "mlflow")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            self._client = MlflowClient(target or None)
        except (MlflowException, ImportError) as error:  # a database needs SQLAlchemy
            name = f"mlflow:{target}" if target else "mlflow"
            raise SpecError("log", name, shortened(str(error), 200)) from None

    def begin(self, run: LoggedRun) -> None:
        """Begin a run, or continue the run of the experiment that this one resumes."""
        self._run = run
        known = self._client.get_experiment_by_name(run.name)
        place = known.experiment_id if known else self._client.create_experiment(run.name)
        self._id = self._found(place) if run.resumes else None
        if self._id is None:
            made = self._client.create_run(place, tags={_TAG: run.first}, run_name=run.experiment)
            self._id = made.info.run_id
            for name, value in run.spec.items():
                self._client.log_param(self._id, name, str(value)[:_VALUE_LETTERS_MAX])
        else:
            self._client.update_run(self._id, status="RUNNING")
        self._last = self._last_step(self._id)

    def log(self, epoch: RoundResult) -> None:
        """Log the metrics of an epoch at its number, unless the run already has that epoch."""
        if epoch.epoch > self._last:
            self._log(scalars_of(self._run, epoch), epoch.epoch)

    def end(self, result: Result) -> None:
        """Log the final numbers, and say how the experiment ended."""
        last = self._run.epochs_before + len(result.epochs)
        self._log(ending_of(result), last)
        self._client.set_terminated(self._ident, _STATUS.get(result.state, "FAILED"))

    @property
    def _ident(self) -> str:
        return self._id or ""

    def _log(self, scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._client.log_metric(self._ident, name, value, step=step)

    def _found(self, place: str) -> str | None:
        """Return the run of the experiment with which the training began."""
        search = f"tags.`{_TAG}` = '{self._run.first}'"
        runs: Any = self._client.search_runs([place], search, max_results=1)
        return runs[0].info.run_id if runs else None

    def _last_step(self, ident: str) -> int:
        """Return the last epoch that a run has."""
        points = self._client.get_metric_history(ident, "seconds/train")
        return max((point.step for point in points), default=0)
