"""Epochs as the history of a Weights & Biases run, offline unless the user says otherwise."""

from __future__ import annotations

import os
import re
from typing import Any

from downpour.base.states import ExperimentState
from downpour.experiments.loggers.base import LoggedRun, ending_of, scalars_of
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult
from downpour.host.extras import require

_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_.-]")
_MODE, _ERRORS = "WANDB_MODE", "WANDB_ERROR_REPORTING"


class WandbRun:
    """Writes a run into ./wandb, or into WANDB_DIR; `wandb sync` uploads it later.

    Nothing leaves this machine unless WANDB_MODE is "online". The run has the identifier of the
    first experiment of a training. So the parts of a resumed training become one run, if you
    synchronize them with `wandb sync --append`.

    Args:
        target: The project; by default the spec's name.

    Raises:
        MissingPackage: wandb is not installed.
    """

    def __init__(self, target: str) -> None:
        require("--log wandb", "wandb")
        self._project = target

    def begin(self, run: LoggedRun) -> None:
        """Begin a run."""
        mode: Any = os.environ.get(_MODE, "offline")
        if mode != "online":
            # wandb reads this during its import; otherwise it would report its own errors to its
            # makers.
            os.environ.setdefault(_ERRORS, "false")
        import wandb

        self._run = run
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            quiet=True,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        self._log = wandb.init(
            project=self._project or run.name,
            id=_NOT_IN_AN_ID.sub("-", run.first)[:128],
            name=run.experiment,
            config=dict(run.spec),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )

    def log(self, epoch: RoundResult) -> None:
        """Log an epoch at its number."""
        self._log.log(scalars_of(self._run, epoch), step=epoch.epoch)

    def end(self, result: Result) -> None:
        """Log the final numbers, and finish the run."""
        self._log.summary.update(ending_of(result))
        self._log.finish(exit_code=int(result.state is not ExperimentState.FINISHED))
