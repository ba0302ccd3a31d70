"""An experiment that is logged, resumed, and logged on."""

import dataclasses
from pathlib import Path

from downpour.record import Result
from downpour.record.rows import StepPoint
from downpour.show.loggers import LoggedRun, Logger

RECORDED = Path(__file__).parents[2] / "recorded"
RESULT = Result.read(RECORDED / "gestures")
RUN = LoggedRun(experiment=RESULT.experiment, name=RESULT.name, spec=RESULT.spec)
EPOCHS = [epoch for epoch in RESULT.epochs if epoch.metrics]


def logged(logger: Logger, run: LoggedRun = RUN) -> None:
    """Log all epochs of the recorded experiment, counted on from those before the run."""
    logger.begin(run)
    for epoch in EPOCHS:
        number = run.epochs_before + epoch.epoch
        steps = {4 * number - 2: 2.0, 4 * number: 1.0}
        if hasattr(logger, "log_steps"):
            points = (StepPoint(step, {"step/loss": loss}) for step, loss in steps.items())
            logger.log_steps([*points])
        logger.log(dataclasses.replace(epoch, epoch=number, round=number))
    logger.end(RESULT)


def resumed(before: int) -> LoggedRun:
    """Return an experiment that resumes the recorded one after some rounds."""
    return LoggedRun(
        experiment="gestures-8a40",
        name=RESULT.name,
        spec={**RESULT.spec, "rounds_before": before},
        resumes=(RUN.experiment,),
        rounds_before=before,
        epochs_before=before,
    )
