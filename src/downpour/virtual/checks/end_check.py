"""Checks the state of a simulated cluster after the end of all its experiments."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from downpour.base.states import ExperimentState
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler.experiment import Experiment
from downpour.core.spec import ResolvedSpec
from downpour.files.store import layout
from downpour.virtual.checks.counting_check import CountingCheck
from downpour.virtual.checks.promises import Comparisons, Expect, Promise
from downpour.virtual.checks.push_check import PushCheck
from downpour.virtual.simulated.disk import Disk
from downpour.virtual.simulated.fake_files import loss_of


def check_the_end(
    comparisons: Comparisons,
    disk: Disk,
    core: Scheduler,
    counting: CountingCheck,
    pushes: PushCheck,
    may_fail: Collection[str],
) -> None:
    """Compare how experiments ended with how they would have ended without faults."""
    expect = comparisons.of(Promise.RESULTS)
    for name, experiment in core.state.experiments.items():
        finished = experiment.life.state is ExperimentState.FINISHED
        if name not in may_fail:
            state = experiment.life.state
            sentence = f"{name} is {state}: {experiment.reason}"
            comparisons.expect(Promise.FINISHES, finished, sentence)
        if finished and not experiment.spec.in_step:
            pushes.check_result(core, experiment)
        elif finished:
            _check_result(expect, disk, experiment, counting)


def _check_result(
    expect: Expect, disk: Disk, experiment: Experiment, counting: CountingCheck
) -> None:
    name, result = experiment.name, experiment.result
    published = result is not None and result.name == layout.FINAL_NAME
    expect(published, f"the result of {name} is {result}")
    if result is None:
        return
    version = counting.version_of(name, experiment.model)
    models = counting.models_of(name, version.number)
    last, best = _last_and_best(experiment.spec, list(map(loss_of, models)))
    expect(version.number == last + 1, f"{name} ends with model {version.number}")
    same = bytes(disk.store(name).read(result)) == version.model
    expect(same, f"the result of {name} differs from the counted updates")
    there = disk.store(name).list()
    expect((layout.BEST_NAME in there) == (best is not None), f"{name} keeps what it should not")
    if experiment.spec.validation:
        loss = loss_of(models[last if best is None else best])
        tested = experiment.tested
        expect(tested is not None and tested.loss == loss, f"{name} has tested another model")
    if best is not None:
        kept = disk.store(name).describe(layout.BEST_NAME)
        same = bytes(disk.store(name).read(kept)) == models[best]
        expect(same, f"{name} has kept another model than its best")
    # These include the states of the shards' optimizers, for an experiment that resumes this one.
    gone = [file.name for file in experiment.files() if file.name not in there]
    expect(not gone or name in disk.harmed, f"{gone} should have been kept")


def _last_and_best(spec: ResolvedSpec, losses: Sequence[float]) -> tuple[int, int | None]:
    """Return the round with which an experiment ends, and the best round if the spec keeps it.

    `losses` are those of all trained rounds.
    """
    every, meetings = spec.evaluate_every, spec.meetings
    sign = -1.0 if spec.keep_best == "max:loss" else 1.0
    best: int | None = None
    last = spec.rounds - 1
    for number, loss in enumerate(losses):
        epoch = meetings.epoch_of(number)
        due = meetings.ends_epoch(number) and (epoch + 1) % (every or 1) == 0
        if every and (number == spec.rounds - 1 or due):
            if best is None or sign * loss < sign * losses[best]:
                best = number
            since = epoch - meetings.epoch_of(best)
            if spec.stop_after is not None and since >= spec.stop_after:
                last = number
                break
    return last, best if spec.keep_best is not None else None
