"""A worker that behaves as `worker/agent.py` does, and trains by letting time pass.

It registers, beats, and takes tasks; a new one supersedes the one before. It insists on a report
until somebody acknowledges it. Where it cannot reach its manager it looks for the one in office.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from downpour.errors import StoreError
from downpour.runtime.pace import until_next_beat
from downpour.simulator import contents
from downpour.simulator.clock import Process
from downpour.simulator.machines import Course
from downpour.simulator.messages import Registered, Task
from downpour.simulator.network import OVERDUE, STOPPING, UNREACHABLE, Answer, Refusal
from downpour.simulator.running import Phase, Running
from downpour.simulator.site import Site
from downpour.store import layout
from downpour.values import AttemptId, FailureKind, Progress, PublishedFile, Snapshot, Update

_PERCENT = 100
_SNAPSHOT_PATIENCE_SECONDS = 2.0
_STEP_SECONDS = 0.05
_ROUNDING = 1e-9
_REGISTER_SECONDS = 1.0
_INSIST_FIRST_SECONDS = 0.2
_INSIST_LONGEST_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.25


class Worker(Process):
    """One life of a worker; `on_death` starts the next where there is to be one.

    Args:
        site: the world.
        name: what it calls itself, after its machine; the manager may have it called otherwise.
        host: its machine, which is its address.
        manager: the address it was told.
        on_death: told when it has left or crashed.
    """

    def __init__(
        self,
        site: Site,
        name: str,
        host: str,
        manager: str,
        on_death: Callable[[Worker], None],
    ) -> None:
        super().__init__(site.clock, host)
        self.site = site
        self.name = name
        self.fails_next = 0
        self.damages_next = 0
        self.dies_at: Phase | None = None
        self._identity = site.random.getrandbits(48)
        self._told = manager
        self._manager = manager
        self._machine = name
        self._on_death = on_death
        self._inbox: deque[Task] = deque()
        self._wanted: AttemptId | None = None
        self._running: Running | None = None
        self._leaving = False
        self._waits_to_beat = False
        self._is_heard = True
        self._beat_number = 0
        self._term = 0

    # The service

    def ping(self, answer: Answer) -> None:
        """Say who is here."""
        answer(self.name)

    def train(self, answer: Answer, task: Task) -> None:
        """Take a task, but not from a manager that was replaced; it supersedes what is running."""
        if task.term < self._term:
            answer(Refusal("a later manager is in office"))
            return
        answer(None)
        if self._wanted == task.attempt:
            return
        self._wanted = task.attempt
        if self._running is not None:
            self._give_up(self._running)
        self._inbox.append(task)
        self._next_task()

    def cancel(self, answer: Answer, attempt: AttemptId) -> None:
        """Stop an attempt, or forget it where it has not begun."""
        answer(None)
        self._forget(attempt)

    def hand_over(self, answer: Answer, attempt: AttemptId) -> None:
        """Publish the state of an attempt at its next step, and stop; before that it goes on."""
        answer(None)
        running = self._running
        if running is not None and running.attempt == attempt and running.phase == "training":
            if running.course is None:
                self.after(_STEP_SECONDS, self.hand_over, _nobody, attempt)
                return
            steps = self._percent(running) + 1
            share = (steps / _PERCENT - running.share) / (1.0 - running.share)
            spent = self.clock.now_seconds - running.began_at
            wait = max(0.0, running.course.when(share) - spent)
            self.after(wait, self._leave_it, running, running.course, steps)

    def _leave_it(self, running: Running, course: Course, percent: int) -> None:
        if running.phase != "training" or running.cancelled or self._leaving:
            return
        if running.course is not course:
            self.hand_over(_nobody, running.attempt)
            return
        running.phase = "publishing"
        content = b" ".join([*running.start.split()[:-1], str(percent).encode()])
        name = layout.attempt_name("snapshot", running.attempt, self.site.token())

        def published(file: PublishedFile) -> None:
            snapshot = Snapshot(file=file, steps_done=percent, steps_total=_PERCENT)
            self._insist(running, "report_hand_over", running.attempt, snapshot)

        def failed(error: StoreError) -> None:
            self._fail(running, FailureKind.STORE, str(error))

        experiment, publish = running.attempt.experiment, self.site.disk.publish
        saving = self.site.figures.saving_seconds
        self.after(saving, publish, self, experiment, name, content, published, failed)

    def _so_far(self, running: Running) -> Progress:
        if running.phase == "training":
            done = self._percent(running)
            running.progress = replace(
                running.progress,
                steps_done=done,
                steps_total=_PERCENT,
                elapsed_seconds=self._stepped_at(running, done) - running.taken_at,
            )
        return running.progress

    def _stepped_at(self, running: Running, percent: int) -> float:
        """Say when the last step ended, or where none has, when the training began."""
        if running.course is None or running.share >= 1.0:
            return self.clock.now_seconds
        own = max(0.0, percent / _PERCENT - running.share) / (1.0 - running.share)
        return min(self.clock.now_seconds, running.began_at + running.course.when(own))

    def _percent(self, running: Running) -> int:
        """Say how far a training has come."""
        return min(_PERCENT - 1, int(_PERCENT * self._share(running) + _ROUNDING))

    def _share(self, running: Running) -> float:
        if running.course is None:
            return running.share
        done = running.course.share(self.clock.now_seconds - running.began_at)
        return running.share + (1.0 - running.share) * done

    def _forget(self, attempt: AttemptId) -> None:
        if self._wanted == attempt:
            self._wanted = None
        if self._running is not None and self._running.attempt == attempt:
            self._give_up(self._running)

    def _give_up(self, running: Running) -> None:
        running.cancelled = True
        if running.phase == "training":
            self.after(_STEP_SECONDS, self._stop_training, running)

    # Its life

    def start(self) -> None:
        """Register, however often that takes; then beat."""
        self.site.network.serve(self.host, self)
        self._register(self._registered, self._try_to_register_again)

    def _registered(self, reply: Registered) -> None:
        self.name = reply.worker
        self._term = max(self._term, reply.term)
        self._beat_later()

    def _try_to_register_again(self, _: str) -> None:
        self._turn_to_another()
        self.after(_REGISTER_SECONDS, self.start)

    def _register(self, answered: Answer, failed: Callable[[str], None]) -> None:
        running = self._running.attempt if self._running is not None else None
        self._call(
            "register", self.name, self.host, self._identity, self._wanted or running,
            answered=answered, failed=failed,
        )  # fmt: skip

    def crash(self, why: str) -> None:
        """Die at once."""
        if self.alive:
            self.die()
            self.site.network.hang_up(self)
            self.site.tell(f"{self.host} dies {why}")
            self._on_death(self)

    def leave(self) -> None:
        """Give up what is running, say goodbye and go."""
        if self._leaving or not self.alive:
            return
        self._leaving = True
        self.site.tell(f"{self.host} leaves")
        self._call("leave", self.name, answered=self._go, failed=self._go)

    def _go(self, _: Any) -> None:
        self.die()
        self.site.network.hang_up(self)
        self._on_death(self)

    def _call(
        self, method: str, *args: Any, answered: Answer, failed: Callable[[str], None]
    ) -> None:
        self.site.network.call(self, self._manager, method, *args, answered=answered, failed=failed)

    # The heartbeat

    def _beat_later(self) -> None:
        """Wait for the next heartbeat, which is due sooner where a task begins meanwhile."""
        running = self._running
        length = self._expected_seconds(running) if running is not None else None
        wait = until_next_beat(self.site.figures.heartbeat_seconds, length)
        if not self._is_heard:
            wait = min(wait, _LOOK_AGAIN_SECONDS)
        self._waits_to_beat = True
        self._beat_number += 1
        self.after(wait, self._beat, self._beat_number)

    def _expected_seconds(self, running: Running) -> float:
        taken = self.clock.now_seconds - running.taken_at
        if running.phase != "training" or running.course is None:
            return taken
        return running.began_at - running.taken_at + running.course.seconds

    def _beat(self, number: int) -> None:
        if self._leaving or number != self._beat_number:
            return
        self._waits_to_beat = False
        running = (self._so_far(self._running),) if self._running is not None else ()

        def heard(reply: tuple[bool, list[AttemptId]]) -> None:
            self._is_heard = True
            for progress in running if reply[0] else ():
                if self._running is not None and progress.attempt not in reply[1]:
                    self._running.known = progress.snapshot
            self._heard(reply)

        state = self.site.machines.state(self._machine, self.clock.now_seconds)
        told = (*running, *self._accepted)
        self._call("heartbeat", self.name, told, state, answered=heard, failed=self._unheard)

    @property
    def _accepted(self) -> tuple[Progress, ...]:
        """What it was asked for last, where it is still at something else."""
        wanted, running = self._wanted, self._running
        if wanted is None or (running is not None and running.attempt == wanted):
            return ()
        nothing = Progress(attempt=wanted, steps_done=0, steps_total=0, elapsed_seconds=0.0)
        return (nothing,)

    def _heard(self, reply: tuple[bool, list[AttemptId]]) -> None:
        known, unwanted = reply
        for attempt in unwanted:
            self._forget(attempt)
        if known:
            self._beat_later()
        else:
            self._register(self._registered, self._unheard)

    def _unheard(self, reason: str) -> None:
        self._is_heard = False
        if reason == UNREACHABLE:  # who is merely slow is still in office
            self._turn_to_another()
        self._beat_later()

    def _turn_to_another(self) -> None:
        terms = self.site.disk.terms
        in_office = terms[-1] if terms else self._told
        self._manager = self._told if self._manager != self._told else in_office

    # Tasks, one after the other

    def _next_task(self) -> None:
        while self._running is None and self._inbox and not self._leaving:
            task = self._inbox.popleft()
            if task.attempt == self._wanted:
                self._running = Running(task, self.clock.now_seconds)
                if self._waits_to_beat:
                    self._beat_later()
                self._read(self._running)

    def _enter(self, running: Running, phase: Phase) -> bool:
        """Go on to the next phase; says whether it lives to see it."""
        running.phase = phase
        if self.dies_at == phase:
            self.after(0.0, self.crash, f"while {phase}")
        return not self._leaving

    def _read(self, running: Running) -> None:
        experiment, task = running.attempt.experiment, running.task
        read = self.site.disk.read

        def with_model(model: bytes) -> None:
            if task.optimizer_state is None:
                with_state(model, b"")
            else:
                state = task.optimizer_state
                read(self, experiment, state, lambda found: with_state(model, found), failed)

        def with_state(model: bytes, state: bytes) -> None:
            attempt = running.attempt
            place = attempt.round, attempt.shard, task.portion
            afresh = contents.paused(*place, model, state, 0)
            if task.snapshot is None:
                self._train(running, afresh)
            else:
                read(
                    self,
                    experiment,
                    task.snapshot,
                    lambda snapshot: self._train(running, snapshot),
                    lambda _: self._train(running, afresh),
                    _SNAPSHOT_PATIENCE_SECONDS,
                    _SNAPSHOT_PATIENCE_SECONDS,
                )

        def failed(error: StoreError) -> None:
            self._fail(running, FailureKind.STORE, str(error))

        if self._enter(running, "reading"):
            read(self, experiment, task.model, with_model, failed)

    def _train(self, running: Running, start: bytes) -> None:
        if not self._enter(running, "training"):
            return
        if running.cancelled:
            self._stop_training(running)
            return
        running.share = contents.gone_on(start)[1] / _PERCENT
        running.start, running.set_out_at = start, self.clock.now_seconds
        if running.share and self.site.figures.resuming_seconds:
            self.after(self.site.figures.resuming_seconds, self._go_on, running)
        else:
            self._go_on(running)
        if every := self.site.figures.snapshot_seconds:
            self.after(every, self._snapshot, running)

    def _go_on(self, running: Running) -> None:
        """Train from where it is, until it is done or has to pause."""
        if running.phase != "training" or self._leaving:
            return
        work = (1.0 - running.share) * running.task.samples / self.site.figures.shard_samples
        now, machines = self.clock.now_seconds, self.site.machines
        running.began_at = now
        running.course = machines.course(self._machine, running.attempt, now, work)
        self.after(running.course.seconds, self._trained, running, running.course)

    def _pause(self, running: Running, seconds: float) -> None:
        running.share, running.course = self._share(running), None
        self.after(seconds, self._go_on, running)

    def _snapshot(self, running: Running) -> None:
        """Publish how far a task has come, unless the manager has not heard of the last time."""
        if running.phase != "training" or self._leaving:
            return
        self.after(self.site.figures.snapshot_seconds, self._snapshot, running)
        percent = self._so_far(running).steps_done
        if running.known != running.progress.snapshot or running.course is None:
            return
        if saving := self.site.figures.saving_seconds:
            self._pause(running, saving)
        content = b" ".join([*running.start.split()[:-1], str(percent).encode()])
        name = layout.attempt_name("snapshot", running.attempt, self.site.token())

        def published(file: PublishedFile) -> None:
            if running.phase != "training" or running.cancelled:
                disk.delete(self.host, experiment, file.name)
                return
            snapshot = Snapshot(file=file, steps_done=percent, steps_total=_PERCENT)
            running.progress = replace(running.progress, snapshot=snapshot)
            if self.dies_at == "saving":
                self.after(0.0, self.crash, "when it has saved")

        disk, experiment = self.site.disk, running.attempt.experiment
        patience = _SNAPSHOT_PATIENCE_SECONDS
        disk.publish(self, experiment, name, content, published, lambda _: None, patience)

    def _stop_training(self, running: Running) -> None:
        if running.phase == "training" and not self._leaving:
            self._fail(running, FailureKind.CANCELLED, "handed back")

    def _trained(self, running: Running, course: Course) -> None:
        if running.phase != "training" or running.course is not course or self._leaving:
            return
        update = contents.gone_on(running.start)[0]
        seconds = self.clock.now_seconds - running.set_out_at
        if self.fails_next:
            self.fails_next -= 1
            # Its machine is at fault and not the task, so it fails like no other attempt.
            self._fail(
                running,
                FailureKind.NON_FINITE,
                f"the loss of {self.host} is not finite in {running.attempt}",
            )
        elif self._enter(running, "publishing"):
            self._publish(running, update, seconds)

    def _publish(self, running: Running, content: bytes, seconds: float) -> None:
        """Publish the state first: an update that is there is complete."""
        attempt, disk, token = running.attempt, self.site.disk, self.site.token()
        experiment = attempt.experiment

        def failed(error: StoreError) -> None:
            self._fail(running, FailureKind.STORE, str(error))

        def publish_update(state: PublishedFile | None) -> None:
            name = layout.attempt_name("update", attempt, token)
            disk.publish(
                self, experiment, name, content, lambda file: published(file, state), failed
            )

        def published(file: PublishedFile, state: PublishedFile | None) -> None:
            if self.damages_next:
                self.damages_next -= 1
                disk.damaged.add(file.name)
            self._report(running, contents.update_of(file, state, running.task.samples, seconds))

        if running.task.keeps_state:
            state = layout.attempt_name("optimizer", attempt, token)
            after = contents.state_after(content)
            disk.publish(self, experiment, state, after, publish_update, failed)
        else:
            publish_update(None)

    # Reports

    def _report(self, running: Running, update: Update) -> None:
        self._insist(running, "report_update", running.attempt, update)

    def _fail(self, running: Running, kind: FailureKind, reason: str) -> None:
        self._insist(running, "report_failure", running.attempt, kind, reason)

    def _insist(self, running: Running, method: str, *args: Any) -> None:
        self._withdraw_unknown_snapshot(running)
        if self._enter(running, "reporting"):
            self._try_to_report(method, args, _INSIST_FIRST_SECONDS)

    def _try_to_report(self, method: str, args: tuple[Any, ...], at_most_seconds: float) -> None:
        def failed(reason: str) -> None:
            if self._leaving:
                return
            if reason not in {UNREACHABLE, OVERDUE, STOPPING}:
                self._free(reason)
                return
            longer = min(at_most_seconds * 2, _INSIST_LONGEST_SECONDS)
            wait = at_most_seconds * self.site.random.random()
            self.after(wait, self._try_to_report, method, args, longer)

        if not self._leaving:
            self._call(method, self.name, *args, answered=self._free, failed=failed)

    def _withdraw_unknown_snapshot(self, running: Running) -> None:
        snapshot = running.progress.snapshot
        if snapshot is not None and snapshot != running.known:
            experiment, name = running.attempt.experiment, snapshot.file.name
            self.site.disk.delete(self.host, experiment, name)

    def _free(self, _: Any) -> None:
        if self._running is not None and self._wanted == self._running.attempt:
            self._wanted = None
        self._running = None
        self._next_task()


def _nobody(_: Any) -> None:
    """Answer a call that nobody made."""
