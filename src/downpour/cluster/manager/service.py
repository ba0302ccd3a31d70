"""Handles calls from workers and clients: turns calls into events, and state into replies.

This runs on the server's threads. It acknowledges an update only after the core has taken it in.

Prometheus calls, too. Each scrape reads the metrics from state that exists anyway. All but the size
of the journals comes from the driver's thread, so the numbers of one scrape are consistent. Only
the active experiment's name is a label, so there are few time series.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Lock

from downpour.base import VERSION, states
from downpour.base.errors import Refused, SpecError, StoreError
from downpour.base.names import trained_on, whole_id
from downpour.cluster.manager import status as views
from downpour.cluster.manager.driver import Driver
from downpour.cluster.manager.observations import ENDS, Counters
from downpour.cluster.manager.start_file import with_checksums
from downpour.cluster.manager.status import KnownContributions
from downpour.cluster.manager.takeover import Archive
from downpour.cluster.manager.worker_calls import WorkerCalls
from downpour.cluster.manager.workspace import Workspaces, open_workspace
from downpour.core.resolve import decided_in, resolve
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.store import layout
from downpour.files.store.directory import names_in
from downpour.learning import auto, shipping, user_code
from downpour.learning.tasks.agreement import check_named
from downpour.network.metrics import Metrics, counter, gauge, summary
from downpour.network.rpc import messages
from downpour.record.journal import segments
from downpour.record.record import RecordReader

log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 30.0
"""The limit of a long poll. Each poll holds a thread of the server, so a client asks repeatedly."""
_SPEC_BYTES_MAX = 2**20
# The request ends the experiment's identifier, which names a folder.
_REQUEST = re.compile(r"[0-9a-f]{4,32}")
_LOOK_SECONDS = 40.0
"""How long to look for a task's optimizer; a client waits 50 s for the answer."""


@dataclass(eq=False)
class ManagerHandler(WorkerCalls):
    """Handles the calls of clients as well, over a driver and the workspaces of experiments."""

    archive: Archive
    _submitting: Lock = field(init=False, default_factory=Lock)
    _contributions: KnownContributions = field(init=False, default_factory=KnownContributions)

    def submit(self, spec: str, request: str, owner: str = "", priority: int = 0) -> str:
        """Accept an experiment, unless the request was accepted before."""
        if not _REQUEST.fullmatch(request):
            raise SpecError("request", request, "4 to 32 hexadecimal digits in lower case")
        # One at a time: a client that lost an answer repeats the request, for one experiment.
        with self._submitting:
            names = self._names(self.driver.ask(lambda core: list(core.state.experiments)))
            # Compare identifiers, because a later manager knows nothing else of a request. The last
            # part is the request alone, because hexadecimal digits contain no hyphen.
            known = next((name for name in names if name.endswith(f"-{request}")), None)
            if known is None:
                return self._accept(spec, request, owner, priority)
            self._check_same(known, spec, request)
            return known

    def _check_same(self, experiment: str, spec: str, request: str) -> None:
        """Refuse a request that was accepted with another spec."""
        asked = Spec.from_toml(spec)
        try:
            files = replace(self.shared, patience_seconds=0.0, away_seconds=None).store(experiment)
            text = files.read_unchecked(layout.SPEC_NAME, limit_bytes=_SPEC_BYTES_MAX)
            known = ResolvedSpec.from_toml(text.decode())
        except (StoreError, ValueError, SpecError):
            return  # its spec cannot be read, so it cannot be compared
        # The manager filled in the spec's open fields when it accepted the spec. With other workers
        # or files, it would fill them in differently now, although the request is the same.
        same = {
            "shards": asked.shards or known.shards,
            **decided_in(asked, known),
            "code": asked.code or known.code,
            "code_bundle": known.code_bundle,
            "packages": known.packages,
            "init_checksum": asked.init_checksum or known.init_checksum,
            "outer_checksum": asked.outer_checksum or known.outer_checksum,
            "states_checksum": asked.states_checksum or known.states_checksum,
            "best_checksum": asked.best_checksum or known.best_checksum,
        }
        if ResolvedSpec.make({**asked.model_dump(), **same}) != known:
            raise SpecError("request", request, f"already names {experiment}, whose spec differs")

    def _accept(self, spec: str, request: str, owner: str, priority: int) -> str:
        from downpour.learning.models import check_model

        asked = Spec.from_toml(spec)
        data_dir = Path(self.options.data_dir) if self.options.data_dir else None
        check_named(asked, data_dir)
        if asked.task is None:
            check_model(asked)
        self._check_device(asked)
        workers = self.driver.ask(lambda core: len(core.state.workers))
        trainer = auto.trainer_of(asked, workers, patience_seconds=_LOOK_SECONDS)
        resolved = resolve(asked, workers, trainer=trainer)
        resolved = resolved.replace(code=user_code.fixed_code(resolved.factories, resolved.code))
        bundle = _bundle_of(resolved)
        resolved = resolved.replace(
            code_bundle=bundle.digest if bundle else None, packages=user_code.versions_of(resolved)
        )
        # `downpour.run` read the file before it started this manager, and preparation will compare
        # it. We need not read gigabytes a third time in between.
        known = self.options.embedded and resolved.init_checksum is not None
        resolved = with_checksums(resolved, self.shared, known=known)
        experiment = f"{resolved.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{request}"
        # Add it before the event, because the submission is the first entry of its journal.
        of_run = self.options.embedded
        self.spaces.add(
            open_workspace(
                self.shared, experiment, resolved, self.leader, of_run=of_run, bundle=bundle
            )
        )
        event = on.ExperimentSubmitted(
            at_seconds=self._now,
            experiment=experiment,
            spec=resolved,
            version=VERSION,
            owner=owner,
            priority=priority,
        )
        self.driver.post(event).result()
        log.info("%s submitted: %d shards, %d epochs", experiment, resolved.shards, resolved.epochs)
        return experiment

    def _check_device(self, asked: Spec) -> None:
        """Refuse a device that no registered worker has; without workers, accept any device."""
        here = [entry for name in self.roster.names() if (entry := self.roster.get(name))]
        devices = sorted({entry.registration.trains_on for entry in here})
        if devices and not any(trained_on(asked.device, own) for own in devices):
            accepted = (
                f"no worker here has one, only {', '.join(devices)}; start a worker with "
                f"--device {asked.device}, or choose cpu"
            )
            raise SpecError("device", asked.device, accepted)

    def status(self, experiment: str, after_change: int, wait_seconds: float) -> messages.Status:
        """Return the state; if the caller has seen the last change, wait for the next one."""
        if experiment:
            experiment = self._known(experiment)
        self.driver.wait_for_change(after_change, min(wait_seconds, LONGEST_WAIT_SECONDS))
        # Read this before the state: then we may show a change in between twice, but never miss it.
        change = self.driver.change
        own = self._numeric_class
        now = self.driver.ask(
            lambda core: views.status(
                core, self.roster, experiment, change, own, self._contributions.of(core.state)
            )
        )
        if now.experiment is not None:
            return replace(now, experiment=self._held_up(now.experiment))
        return replace(now, experiment=self.archive.summary(experiment))

    def list_experiments(self, before: str, limit: int) -> tuple[messages.ExperimentSummary, ...]:
        """Return this directory's latest experiments, or the latest before a given one."""
        names = self._names(self.driver.ask(lambda core: list(core.state.experiments)))
        # `downpour rm` may have removed the folders of some that have ended.
        there = set(names_in(self.shared.experiments))
        names = [name for name in names if name in there or name not in self.archive]
        if before:
            names = names[: names.index(before)] if before in names else []
        page = names[max(0, len(names) - min(limit, messages.PAGE_EXPERIMENTS_MAX)) :]
        # Summarize only these, because a directory may hold a hundred thousand experiments.
        here = self.driver.ask(
            lambda core: {
                name: views.summary(core.state, core.state.experiments[name])
                for name in page
                if name in core.state.experiments
            }
        )
        known = (here.get(name) or self.archive.summary(name) for name in page)
        return tuple(self._held_up(one) for one in known if one is not None)

    def _names(self, here: Iterable[str]) -> list[str]:
        """Return the names of the experiments in the core and the archive, oldest first."""
        places, names = self.archive.places, dict.fromkeys([*self.archive.names(), *here])
        return sorted(names, key=lambda name: places.get(name, math.inf))

    def cancel(self, experiment: str) -> None:
        """Cancel an experiment; one that has ended stays as it is."""
        experiment = self._known(experiment)
        self._cancel(experiment, "cancelled by request")

    def _cancel(self, experiment: str, reason: str) -> None:
        now = self._now
        event = on.ExperimentCancelled(at_seconds=now, experiment=experiment, reason=reason)
        self.driver.post(event).result()

    def pause(self, experiment: str, paused: bool | None, priority: int | None) -> None:  # noqa: FBT001
        """Pause an experiment, continue it, or prioritize it while it waits."""
        experiment = self._known(experiment)
        now = self._summary(experiment).condition
        if priority is not None and now not in {"waiting", "paused"}:
            raise SpecError("priority", priority, f"{experiment} is {now}, and does not wait")
        event = on.PauseAsked(
            at_seconds=self._now, experiment=experiment, paused=paused, priority=priority
        )
        self.driver.post(event).result()

    def disturbed(self, experiment: str, who: str, what: str) -> None:
        """Record that someone disturbs a process on purpose; this changes no decision."""
        experiment = self._known(experiment)
        event = on.Disturbed(at_seconds=self._now, experiment=experiment, who=who, what=what)
        self.driver.post(event).result()

    def cancel_all(self, reason: str) -> None:
        """Cancel every experiment."""
        for experiment in self.driver.ask(lambda core: list(core.state.experiments)):
            self._cancel(experiment, reason)

    def results(self, experiment: str, from_line: int, wait_seconds: float) -> messages.RecordPage:
        """Return lines of an experiment's record, waiting for one if there is none yet."""
        experiment = self._known(experiment)
        record = self._record(experiment)
        deadline = self._now + min(wait_seconds, LONGEST_WAIT_SECONDS)
        while True:
            change = self.driver.change
            # Read this before the lines, so that a reader that sees the end has all of them.
            summary = self._summary(experiment)
            lines = record.lines(from_line)
            done = lines or summary.state.ended
            if done or not self.driver.wait_for_change(change, deadline - self._now):
                next_line = from_line + len(lines)
                return messages.RecordPage(
                    lines=tuple(lines), next_line=next_line, experiment=summary
                )

    def _known(self, experiment: str) -> str:
        """Return an experiment's whole ID."""
        if self._is_known(experiment):
            return experiment
        here = self.driver.ask(lambda core: list(core.state.experiments))
        whole = whole_id(experiment, self._names(here))
        if not self._is_known(whole):
            reason = f"no experiment '{experiment}'; `downpour list` names them"
            raise Refused("experiment", reason, value=experiment)
        return whole

    def _is_known(self, experiment: str) -> bool:
        return bool(self.spaces.get(experiment) or self.archive.summary(experiment))

    def _record(self, experiment: str) -> RecordReader:
        space = self.spaces.get(experiment)
        # Once an experiment has ended, its record is a file, and the lines need not stay in memory.
        runs = space is not None and experiment not in self.archive
        record = space.record if space and runs else self.archive.record(experiment)
        if record is None:
            reason = f"{experiment} has no readable record"
            raise Refused("experiment", reason, value=experiment)
        return record

    def _held_up(self, summary: messages.ExperimentSummary) -> messages.ExperimentSummary:
        """Add the reason to the summary of an experiment whose folder was removed."""
        space = self.spaces.get(summary.experiment)
        if summary.state.ended or space is None or not space.is_gone:
            return summary
        what = "it" if self.shared.bucket is None else "them"
        reason = f"held up: {space.gone_reason}; put {what} back, or cancel the experiment"
        return replace(summary, reason=reason)

    def _summary(self, experiment: str) -> messages.ExperimentSummary:
        archived = self.archive.summary(experiment)
        return archived or self.driver.ask(
            lambda core: views.summary(core.state, core.state.experiments[experiment])
        )


def _bundle_of(resolved: ResolvedSpec) -> shipping.Bundle | None:
    """Return the bundle of a spec's own code; None if workers must have the files themselves."""
    try:
        return shipping.bundle_of(resolved)
    except shipping.BadBundle as reason:
        log.warning("cannot ship the code of %s to workers: %s", resolved.name, reason)
        return None


def manager_metrics(
    driver: Driver, archive: Archive, counters: Counters, spaces: Workspaces, term: int
) -> Metrics:
    """Yield a manager's metrics; raises Refused if it is stopping. Many threads call this."""
    yield from driver.ask(
        lambda core: [*_current(core, archive), *_active(core.state.active), *_past(counters)]
    )
    # Read the sizes in this thread: the driver's must not wait for a directory that hangs.
    going = driver.ask(
        lambda core: [e.name for e in core.state.experiments.values() if not e.life.state.ended]
    )
    known = filter(None, map(spaces.get, going))
    folders = [space.shared.experiment_path(space.experiment) for space in known]
    help_text = "Size of the journals of the experiments that have not ended."
    yield gauge("downpour_journal_bytes", help_text, sum(map(_journal_bytes, folders)))
    yield gauge("downpour_term", "The number of this manager's term.", term)


def _current(core: Scheduler, archive: Archive) -> Metrics:
    workers = (views.shown_state(core.state, worker) for worker in core.state.workers)
    help_text = "Registered workers, by state."
    counts = _by_state(states.WorkerState, workers, {states.WorkerState.GONE})
    yield gauge("downpour_workers", help_text, counts, "state")
    slowness = {one.name: median(one.slowness) for one in core.state.workers if one.slowness}
    help_text = "A worker's seconds a sample over the round's median, median of 16 rounds."
    yield gauge("downpour_worker_slowness_ratio", help_text, slowness, "worker")
    help_text = "Workers that policies have requested so far."
    yield gauge("downpour_workers_wanted", help_text, core.state.wanted_workers)
    # Take only the counts from the archive: with 100,000 experiments in it, a scrape would hold up
    # the driver. The archive also has the core's ended experiments.
    experiments = [one for one in core.state.experiments.values() if one.name not in archive]
    counts = _by_state(states.ExperimentState, (each.life.state for each in experiments))
    counts = {name: n + archive.states[states.ExperimentState(name)] for name, n in counts.items()}
    yield gauge("downpour_experiments", "Experiments of this directory, by state.", counts, "state")
    done = archive.rounds_done + sum(one.rounds_done for one in experiments)
    help_text = "Rounds that became a model, of all experiments, earlier managers included."
    yield counter("downpour_rounds_total", help_text, done)
    current = core.state.active.round if core.state.active else None
    tasks = _by_state(
        states.TaskState, (task.life.state for task in current.tasks) if current else ()
    )
    yield gauge("downpour_tasks", "Tasks of the current round, by state.", tasks, "state")


def _active(active: Experiment | None) -> Metrics:
    """Yield the metrics of the active experiment, with its name as a label."""
    done = {active.name: active.rounds_done} if active else {}
    asked = {active.name: active.spec.rounds} if active else {}
    help_text = "Rounds of the active experiment that became a model."
    yield gauge("downpour_experiment_rounds_done", help_text, done, "experiment")
    help_text = "Rounds that were asked for of the active experiment."
    yield gauge("downpour_experiment_rounds_asked", help_text, asked, "experiment")
    last = active.last_evaluation if active else None
    metrics = last.metrics if last else {}
    accuracy = {active.name: metrics["accuracy"]} if active and "accuracy" in metrics else {}
    loss = {active.name: last.loss} if active and last and active.part == "test" else {}
    help_text = "Share of the test examples that the active experiment's model gets right."
    yield gauge("downpour_experiment_accuracy_ratio", help_text, accuracy, "experiment")
    help_text = "The metrics of the active experiment's task, over the test examples."
    labelled = {(active.name, name): value for name, value in metrics.items()} if active else {}
    yield gauge("downpour_experiment_metric", help_text, labelled, "experiment", "metric")
    help_text = "Mean loss of the active experiment's model on the test examples."
    yield gauge("downpour_experiment_test_loss", help_text, loss, "experiment")


def _past(counters: Counters) -> Metrics:
    yield counter("downpour_attempts_assigned_total", "Tasks given to workers.", counters.assigned)
    help_text = "Attempts by how they ended: counted, handed_over, withdrawn, lost and so on."
    ends = {end: counters.ended[end] for end in ENDS}
    yield counter("downpour_attempts_ended_total", help_text, ends, "end")
    help_text = "Snapshots of tasks that were published."
    yield counter("downpour_snapshots_total", help_text, counters.snapshots)
    help_text = "Shards that a round was closed without."
    yield counter("downpour_shards_dropped_total", help_text, counters.dropped)
    help_text = "Updates whose bytes differ from those of the update that counts."
    yield counter("downpour_updates_contradicted_total", help_text, counters.contradicted)
    help_text = "From a round's first assignment to its last update."
    yield summary("downpour_round_seconds", help_text, counters.training)
    help_text = "From the last round's first assignment to its last update."
    yield gauge("downpour_last_round_seconds", help_text, counters.training.last_seconds)
    help_text = "From a round's last update to the next model."
    yield summary("downpour_aggregation_seconds", help_text, counters.aggregation)
    help_text = "Evaluation of a model, beside the next round."
    yield summary("downpour_evaluation_seconds", help_text, counters.evaluation)


def _by_state(
    kind: type[states.State],
    found: Iterable[states.State],
    left_out: Iterable[states.State] = (),
) -> Mapping[str, int]:
    """Count states, with 0 for unused ones, so that no state is missing from a graph."""
    counts = Counter(found)
    return {state: counts[state] for state in kind if state not in left_out}


def _journal_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError, StoreError):  # a checkpoint may remove a segment between the two calls
        for segment in segments(folder):
            total += segment.stat().st_size
    return total
