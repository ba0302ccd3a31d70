"""Runs a study, run by run, on this machine or at a manager elsewhere.

The process reads the folder's own copy of the study's file, so later edits of the user's file have
no effect on it. A backend returns a run's record as the manager wrote it, even if the run failed.
To end a run early, the backend cancels its experiment, as any client may.

If a run fails, the study continues. Only if the first run fails because of its spec, the study
ends. A mistake in the file is then more likely than one invalid setting, and all later runs would
fail as well. The study keeps nothing of that run, so that the user can correct the file.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console

from downpour.base.errors import DownpourError, ExperimentFailed, LaunchError, SpecError
from downpour.base.states import LOSS, ExperimentState
from downpour.cluster.launchers import RunningCluster
from downpour.core.spec import Spec
from downpour.experiments.client import Client, OnStatus
from downpour.experiments.following import Follower, OnEvent, announcers
from downpour.experiments.studies.folder import (
    BEST_NAME,
    LOG_NAME,
    StudyFolder,
    held,
    holder,
    refusal,
    replace_file,
)
from downpour.experiments.studies.study import (
    EndedRun,
    Measured,
    OnEpoch,
    Run,
    RunSummary,
    StudyPlan,
    StudyProgress,
    StudySpec,
    about,
)
from downpour.experiments.surroundings import Surroundings, workers_for
from downpour.experiments.training import embed
from downpour.files.store.publish import explain
from downpour.host.child import Child
from downpour.learning.tasks.agreement import check_named
from downpour.network.rpc.messages import Status
from downpour.record import Result
from downpour.record.record import parse_lines
from downpour.record.record_lines import EvaluatedLine, PreparedLine, SubmittedLine
from downpour.record.tables import Tables
from downpour.show.tables.live import ProgressDisplay


@contextmanager
def submitted(client: Client, run: Run, note: Path | None) -> Iterator[str]:
    """Submit a run, or find its experiment again; yield the experiment's identifier.

    If the block is interrupted, or the study no longer needs the run, this cancels the experiment.

    `note` is the file for the run's request, by which the next process finds the experiment again;
    None if the manager ends with this process.
    """
    request = secrets.token_hex(4) if note is None else _request(client, run, note)
    experiment = client.submit(run.spec, request)
    try:
        yield experiment
    except BaseException:
        with suppress(DownpourError):
            client.cancel(experiment)
            _forget(note)
        raise
    _forget(note)


def _request(client: Client, run: Run, note: Path) -> str:
    """Return the run's request from the file, or write a new one to it."""
    noted_run, request = _read(note)
    ending = f"-{request}"
    summaries = client.newest() if request else ()
    begun = next((each for each in summaries if each.experiment.endswith(ending)), None)
    # A manager that does not know the experiment takes the same request again.
    lost = begun is not None and begun.state in (ExperimentState.FAILED, ExperimentState.CANCELLED)
    if noted_run == run.id and not lost:
        return request
    if begun is not None:
        client.cancel(begun.experiment)
    request = secrets.token_hex(4)
    try:
        replace_file(note, json.dumps({"run": run.id, "request": request}).encode())
    except OSError as error:
        raise refusal(note.parent, explain(error)) from None
    return request


def _read(note: Path) -> tuple[str, str]:
    """Return the run and the request in the file; two empty texts if there are none."""
    try:
        content = json.loads(note.read_bytes())
        return str(content["run"]), str(content["request"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", ""


def _forget(note: Path | None) -> None:
    if note is not None:
        note.unlink(missing_ok=True)


Train = Callable[[Run, OnStatus, OnEpoch | None], bytes]
"""Trains a run until it ends, or until the plan ends it, and returns its record.

Raises DownpourError if training fails.
"""


class Backend(Protocol):
    """Trains the runs of a study."""

    def check(self, study: StudySpec) -> None:
        """Refuse a study that this backend cannot run, before anything starts.

        Raises:
            SpecError: a field is invalid; the message names it and the accepted values.
        """

    def start(self, study: StudySpec) -> AbstractContextManager[Train]:
        """Return a context in which the backend can train runs."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Trains with a manager and workers that end with the run, or with the study."""

    surroundings: Surroundings
    """The place of the processes: this machine, by default."""
    on_event: OnEvent | None = None
    """Gets each experiment's events."""

    def check(self, study: StudySpec) -> None:
        """Refuse missing datasets, and fewer workers than a policy needs."""
        fields = ("task", "dataset", "data_path", "dataset_options", "image_size", "loss")
        runs = list(study.samples())
        # Most runs of a grid share their examples.
        specs = {str([getattr(run.spec, name) for name in fields]): run.spec for run in runs}
        for spec in specs.values():
            check_named(spec, self.surroundings.data_dir)
        for run in runs:
            self._workers(run)

    @contextmanager
    def start(self, study: StudySpec) -> Iterator[Train]:
        """Start as many workers as the largest run uses, or new ones for each run.

        See `StudySpec.shares_workers`.
        """
        if study.shares_workers:
            # Threads and device are the first run's. A search must not vary the device, and each
            # task sets its own number of threads. Workers have everything that any run needs.
            runs = list(study.samples())
            first, others = runs[0].spec, [set(run.spec.needs) for run in runs[1:]]
            needs = [need for need in first.needs if all(need in other for other in others)]
            with self._cluster(first.replace(needs=needs), max(map(self._workers, runs))) as train:
                yield train
        else:
            yield self._train_alone

    def _train_alone(self, run: Run, on_status: OnStatus, on_epoch: OnEpoch | None) -> bytes:
        with self._cluster(run.spec, self._workers(run)) as train:
            return train(run, on_status, on_epoch)

    def _workers(self, run: Run) -> int:
        return workers_for(run.spec, run.workers, is_here=self.surroundings.is_here)

    @contextmanager
    def _cluster(self, spec: Spec, workers: int) -> Iterator[Train]:
        with embed(spec, workers, self.surroundings) as (cluster, client):
            yield partial(_train, client, None, cluster, self.on_event)


@dataclass(frozen=True, slots=True)
class Remote:
    """Submits runs to a manager that has its own workers."""

    client: Client
    note: Path | None = None
    """Holds the request of the current run. If someone kills this process, the next one finds the
    run's experiment again."""
    on_event: OnEvent | None = None
    """Gets each experiment's events."""

    def check(self, study: StudySpec) -> None:
        """Refuse several numbers of workers: the manager trains all runs with its own workers."""
        numbers = {run.workers for run in study.samples()}
        if len(numbers) > 1:
            given = sorted(n for n in numbers if n is not None)
            why = "because that manager has its own workers"
            raise SpecError("workers", given, f"must be a single number with --manager, {why}")

    @contextmanager
    def start(self, study: StudySpec) -> Iterator[Train]:  # noqa: ARG002
        """Start nothing: the manager is running already."""
        yield partial(_train, self.client, self.note, None, self.on_event)


def _train(
    client: Client,
    note: Path | None,
    cluster: RunningCluster | None,
    on_event: OnEvent | None,
    run: Run,
    on_status: OnStatus,
    on_epoch: OnEpoch | None,
) -> bytes:
    """Submit a run and wait for its end; see `Train`.

    If `on_epoch` returns true or the wait is interrupted, this cancels the run.
    """
    lines: list[str] = []
    tables = Tables()
    listener = on_epoch  # None once it has decided: we cancel a run at most once

    def watch(status: Status) -> None:
        nonlocal listener
        if cluster is not None:
            cluster.provide(status.wanted_workers, status.idle_workers)
        on_status(status)
        follower.follow(experiment, record)
        follower.see(status)
        if listener is None:
            return
        new = record(experiment, len(lines))
        lines.extend(new)
        if any(listener(epoch, measured) for epoch, measured in measured_in(new, tables)):
            listener = None
            client.cancel(experiment)

    check = None if cluster is None else cluster.check
    # If the manager died, it answers only after `check` has restarted it.
    record = partial(client.record, check=check)
    with Follower(announcers(on_event)) as follower, submitted(client, run, note) as experiment:
        with suppress(ExperimentFailed):  # the record says how the run ended
            client.wait(experiment, on_status=watch, check=check)
        lines += record(experiment, len(lines))
    return "".join(f"{line}\n" for line in lines).encode()


def measured_in(lines: Sequence[str], tables: Tables) -> Iterator[tuple[int, Measured]]:
    """Yield the measurements of each evaluation in a record's next lines, with its epoch from 1.

    The `tables` hold what the lines before them, and these, say of rounds and epochs.
    """
    for _, fact in parse_lines(lines):
        match fact:
            case EvaluatedLine():
                epoch = tables.meetings.epoch_of(fact.round) + 1
                yield epoch, {**fact.metrics, LOSS: fact.loss}
            case SubmittedLine() | PreparedLine():
                tables.take(0.0, fact)


class StudyDisplay(ProgressDisplay):
    """A context manager that shows a study's progress; it draws bars only on a terminal."""

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        super().__init__(console)
        self._say = say
        self._bar = self.bars.add_task("runs", total=None, count="", left="")
        self._seconds_left: float | None = None
        self._since = 0.0

    def begins(self, run: Run, progress: StudyProgress) -> None:
        """Show a run's own bars from the start."""
        self.again(run.title)
        self._draw(progress)

    def show(self, status: Status) -> None:
        """Draw the current state of the run."""
        super().show(status)
        self._count_down()

    def ends(self, line: str, progress: StudyProgress) -> None:
        """Print the line of a run that has ended."""
        self._say(line)
        self._draw(progress)

    def _draw(self, progress: StudyProgress) -> None:
        self._seconds_left, self._since = progress.seconds_left, time.monotonic()
        self.bars.update(
            self._bar,
            description=progress.headline,
            completed=progress.total - progress.left,
            total=progress.total,
            count=progress.count,
        )
        self._count_down()

    def _count_down(self) -> None:
        # The estimate changes only when a run ends; between runs it decreases with the clock.
        left = self._seconds_left
        if left is not None:
            left = max(0.0, left - (time.monotonic() - self._since))
        self.bars.update(self._bar, left=about(left))


# A busy machine takes seconds to import what a study needs. After this long we assume that the
# process runs; `--status` says whether it does.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def detach(command: str, folder: StudyFolder[StudySpec], options: Sequence[str]) -> int:
    """Start a process that runs a study; return its ID once it holds the folder's lock.

    `command` is the subcommand of `downpour`, which takes a file and `--out`.
    """
    folder.check()
    with held(folder.path):  # released again, because the new process takes the lock itself
        folder.begin()
    log = folder.path / LOG_NAME
    words = [str(folder.study_file), "--out", str(folder.path), *options]
    study = Child("downpour", [command, *words], log=log)
    study.tell(b"", is_last=True)
    deadline = time.monotonic() + _START_SECONDS
    while holder(folder.path) is None and time.monotonic() < deadline:
        if (status := study.process.poll()) is not None:
            if status == 0:  # all runs had finished before
                break
            last = study.last_words or f"ended at once; see {log}"
            raise LaunchError(last, asked_wrongly=status == 2)
        time.sleep(_LOOK_SECONDS)
    return study.process.pid


OnKept = Callable[[Path], None]
"""Called once a run is saved, with the path of its record, in a folder of the run's name."""


def run_study(
    folder: StudyFolder[StudySpec],
    backend: Backend,
    display: StudyDisplay,
    on_kept: OnKept | None = None,
) -> StudyProgress:
    """Run the missing runs of a study; return its progress at the end."""
    backend.check(folder.study)
    folder.check()
    with held(folder.path):
        folder.begin()
        ended = folder.ended()
        plan = folder.study.plan(ended)
        _write_best(plan, folder)  # a killed process may have saved a run, but not this
        if plan.progress.left:
            with backend.start(folder.study) as train:
                is_first = not ended
                while run := plan.next():
                    display.begins(run, plan.progress)
                    _run(run, plan, folder, train, display, is_first=is_first)
                    if on_kept is not None:
                        on_kept(folder.record(run.name))
                    is_first = False
        return plan.progress


def _run(
    run: Run,
    plan: StudyPlan,
    folder: StudyFolder[StudySpec],
    train: Train,
    display: StudyDisplay,
    *,
    is_first: bool,
) -> None:
    began = time.monotonic()
    record = train(run, display.show, plan.on_epoch)
    result = Result.from_lines(record.decode().splitlines())
    summary = plan.judge(RunSummary.of(result, run.workers, time.monotonic() - began))
    if is_first and summary.asked_wrongly:
        raise ExperimentFailed(summary.experiment, summary.reason or "", asked_wrongly=True)
    # We save it before the plan learns, because a plan knows only what the folder holds.
    folder.keep(run, record, summary)
    ended, best_before = EndedRun(run, summary), plan.best
    plan.learn(ended)
    if plan.best != best_before:
        _write_best(plan, folder)
    display.ends(plan.line(ended), plan.progress)


def _write_best(plan: StudyPlan, folder: StudyFolder[StudySpec]) -> None:
    if plan.best is not None:
        folder.write(BEST_NAME, plan.best.spec.to_toml().encode())
