"""The Python call that trains: `run`, with a manager and workers that end with the call.

It imports no torch; only the processes that it starts do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

from downpour.base.names import checked_call
from downpour.cluster.disturbances import Disturbances
from downpour.cluster.launchers import Launcher, launch_of, refuse_unmet
from downpour.core.spec import Spec
from downpour.experiments.client import Asked, OnStatus, spec_of
from downpour.experiments.following import OnEvent, OnRound
from downpour.experiments.running.surroundings import Location, Surroundings
from downpour.experiments.running.training import train
from downpour.experiments.running.watching import Watching
from downpour.host.paths import path_of
from downpour.record import Result
from downpour.show.loggers import Logger

_DIGITS = Spec()


@checked_call(Spec.model_fields)
def run(  # noqa: PLR0913 - by keyword, and few at a time
    spec: Asked = _DIGITS,
    *,
    workers: int | None = None,
    shared: Location | None = None,
    data_dir: Location | None = None,
    patience: float = 1.0,
    on_status: OnStatus | None = None,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
    loggers: Sequence[Logger | str] = (),
    progress: bool | None = None,
    tensorboard: Location | None = None,
    on: Launcher | str | None = None,
    slow: Mapping[str, float | str] | None = None,
    kill: Sequence[str] = (),
) -> Result:
    """Train with a manager and workers that end with the call, on this machine by default.

    Args:
        spec: What to train: a spec, its fields by name, or the path of a TOML file; without one, a
            small network on scikit-learn's digits.
        workers: The number of worker processes; by default one per shard, but no more than this
            machine has cores.
        shared: The shared directory, which `run` makes if it is missing; the results stay there. By
            default DOWNPOUR_SHARED, or else ./shared_dir.
        data_dir: A folder of datasets in torchvision's layout; by default DOWNPOUR_DATA.
        patience: Multiplies every timeout: of heartbeats, of progress and of missing files.
        on_status: Called with each new status, at most ten times a second.
        on_round: Called with each evaluated epoch, a `RoundResult` with its metrics, losses,
            seconds and bytes. It runs in its own thread and delays no training. If it raises, the
            first error is logged and training continues.
        on_event: Called in the same way with each `ExperimentEvent`, such as "finished".
        loggers: Where to log epochs: texts as for `--log`, such as `"csv:log.csv"`, or `Logger`s.
        progress: Whether to draw bars, in a terminal or a notebook; by default, `run` draws them
            unless `on_status` is given.
        tensorboard: A folder for TensorBoard; `run` writes event files into it during the run.
        on: The launcher of workers: `"local"` (processes), `"inline"` (threads of this process, for
            a debugger), `"slurm"`, `"ray"`, `"ssh"`, `"compose"`, or any `Launcher` of
            `downpour.launchers`. By default, the one of the file's `[launch]`, or `"local"`.
        slow: Workers to slow down on purpose, by name: `{"worker-3": 0.25}` runs at a quarter of
            its speed, and `"0.25,pauses=6/10"` also stands still for 6 of each 10 seconds.
        kill: Processes to kill on purpose: `"worker-2@round3"` (rounds count from 1), or
            `"manager@20s"` after training began. A killed manager restarts; a worker stays away
            unless `,restart` follows.

    Raises:
        SpecError: an argument or a field is invalid; the message names it and the accepted values.
        MissingPackage: the library of `tensorboard` or of a logger is not installed.
        ExperimentFailed: training ended without a model; the message says why.
        NotBegun: the same, but Downpour refused the training before it began, and keeps nothing.
        LaunchError: a process could not be started.
    """
    asked = spec_of(spec)
    workers, on = _placed(spec, asked, workers, on)
    disturbances = Disturbances.of(slow, kill)
    place = Surroundings(shared, data_dir, patience, on, disturbances=disturbances)
    told = partial(Watching, on_status=on_status, on_round=on_round, on_event=on_event)
    watching = told(loggers=loggers, progress=progress, tensorboard=tensorboard)
    return train(asked, workers, place, watching)


def _placed(
    spec: Asked, asked: Spec, workers: int | None, on: Launcher | str | None
) -> tuple[int | None, Launcher | str | None]:
    """Return the workers and their launcher; a file may name both if the caller does not."""
    if on is None and isinstance(spec, str | os.PathLike):
        table = launch_of(path_of("spec", spec))
        launcher = table.launcher if table.options or any(table.settings.values()) else table.on
        table.check(asked)
        return table.workers if workers is None else workers, launcher
    if on is None or isinstance(on, str):
        refuse_unmet(asked, on or "local", {}, ())
    return workers, on
