"""Carries out the attempts of a simulated worker: reads, lets time pass, saves and publishes.

Its visible actions match those of `cluster/worker/task_runner.py`. The course of the machine gives
the time of a task's steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from downpour.base.errors import FileCorrupt, StoreError
from downpour.base.states import Failure, FailureKind
from downpour.base.values import AttemptId, PublishedFile, Snapshot
from downpour.core.node.attempt import PATIENCE_SECONDS, NextStep, StepLoop
from downpour.core.node.worker import End, Stopped, WorkerNode
from downpour.files.store import layout
from downpour_lab.simulated import fake_files
from downpour_lab.simulated.environment import Environment, What
from downpour_lab.simulated.machines import Course, Phase, SimulatedAttempt
from downpour_lab.simulated.network import Process

PHASES: tuple[Phase, ...] = tuple(each for each in get_args(Phase) if each != "waiting")
"""The phases in which a fault may kill a worker."""
ALIKE = "alike"
"""Marks a task that fails with the same words on every worker."""
# When a step ends, the share may be a rounding error below it.
_ROUNDING = 1e-9


class Trainer(Process):
    """A process that trains: its node decides, and `ended` tells it how an attempt ended."""

    node: WorkerNode[SimulatedAttempt]

    @abstractmethod
    def crash(self, why: str) -> None:
        """Die at once."""

    @abstractmethod
    def ended(self, running: SimulatedAttempt, end: End) -> None:
        """Report how an attempt has ended."""

    @abstractmethod
    def see(self, what: What, *attempts: AttemptId, held: SimulatedAttempt | None = None) -> None:
        """Show an action to the observer."""


class Training:
    """Carries out one attempt after the other; calls the worker when one has ended."""

    def __init__(
        self,
        environment: Environment,
        worker: Trainer,
        machine: str,
        loop_class: type[StepLoop],
    ) -> None:
        self.fails_next: list[str] = []
        self.damages_next = 0
        self.dies_at: Phase | None = None
        self._last: tuple[PublishedFile, bytes] | None = None
        self._environment = environment
        self._steps = environment.timings.shard_steps
        self._worker = worker
        self._machine = machine
        self._loop_class = loop_class

    # What the worker asks for

    def begin(self, running: SimulatedAttempt) -> None:
        """Read what the attempt needs, then train."""
        task = running.task

        def afresh(model: bytes, step: bytes, state: bytes) -> None:
            start = fake_files.moved_by(model, step) if step else model
            place = running.attempt.round, running.attempt.shard, task.portion, task.share
            begun = fake_files.paused(*place, start, state, 0)
            if task.snapshot is None:
                self._train(running, begun)
            else:
                self._restore(running, task.snapshot, begun)

        def with_model(model: bytes) -> None:
            # Keep it, as a real worker does: the next version may be a step from it.
            self._last = task.model, model
            others = task.step, task.optimizer_state
            self._read(running, others, partial(afresh, model))

        self._enter(running, "reading")
        self._read_version(running, task.model, task.leading, with_model)

    def _read_version(
        self,
        running: SimulatedAttempt,
        file: PublishedFile,
        leading: Sequence[PublishedFile],
        then: Callable[[bytes], None],
    ) -> None:
        """Read a version and all that lead to it, back to a whole one or the last one read."""
        if self._last is not None and self._last[0] == file:
            then(self._last[1])
            return

        def read(content: bytes) -> None:
            if not fake_files.is_step(content):
                then(content)
                return
            if not leading:
                self._fail(
                    running, FileCorrupt(file.name, "is a step from a version that has no name")
                )
                return
            before = leading[-1]
            follow = partial(fake_files.led_to, step=content)
            self._read_version(running, before, leading[:-1], lambda base: then(follow(base)))

        self._read(running, [file], read)

    def _read(
        self,
        running: SimulatedAttempt,
        needed: Sequence[PublishedFile | None],
        then: Callable[..., None],
        *read: bytes,
    ) -> None:
        """Read files in turn, then call `then` with their contents; None reads as empty."""
        if not needed:
            then(*read)
            return
        first, *others = needed
        if first is None:
            self._read(running, others, then, *read, b"")
            return
        self._environment.disk.read(
            self._worker,
            running.attempt.experiment,
            first,
            lambda content: self._read(running, others, then, *read, content),
            lambda error: self._fail(running, error),
            is_wanted=lambda: not running.cancelled,
        )

    def _restore(self, running: SimulatedAttempt, snapshot: PublishedFile, afresh: bytes) -> None:
        """Continue from a snapshot, or from the beginning if the snapshot cannot be read."""
        self._environment.disk.read(
            self._worker,
            running.attempt.experiment,
            snapshot,
            lambda content: self._train(running, content),
            lambda _: self._train(running, afresh),
            PATIENCE_SECONDS,
            PATIENCE_SECONDS,
            is_wanted=lambda: not running.cancelled,
        )

    def stop(self, running: SimulatedAttempt) -> None:
        """End a cancelled attempt at its step; if it is publishing, let it continue."""
        if running.phase == "training" and running.cancelled:
            self._proceed(running)

    def end_step(self, running: SimulatedAttempt) -> None:
        """Carry out an attempt's orders at its next step; it trains until then.

        If an attempt is not training at present, it does so as soon as it continues.
        """
        if running.phase == "training" and running.course is not None:
            steps = self.steps_done(running) + 1
            share = (steps / self._steps - running.share) / (1.0 - running.share)
            spent = self._worker.clock.now_seconds - running.set_out_at
            wait = max(0.0, running.course.when(share) - spent)
            self._worker.after(wait, self._step_ended, running, running.course, steps)

    def look(self) -> None:
        """Note how far the running attempt has come."""
        running = self._worker.node.running
        if running is not None and running.phase == "training" and running.course is not None:
            done = self.steps_done(running)
            running.stepped(done, self._stepped_at(running, done))

    def save_if_due(self) -> None:
        """Publish the state of the running attempt, if a snapshot is due."""
        running = self._worker.node.running
        if running is None or running.phase != "training" or running.course is None:
            return
        # If it is to end, it does so at the end of its step, which is already scheduled.
        if not running.cancelled and not running.to_save:
            self.look()
            self._proceed(running)

    # How far it has come

    def _stepped_at(self, running: SimulatedAttempt, steps: int) -> float:
        """Return when the last step ended, or when the training began if none has."""
        now = self._worker.clock.now_seconds
        if running.course is None or running.share >= 1.0:
            return now
        own = max(0.0, steps / self._steps - running.share) / (1.0 - running.share)
        return min(now, running.set_out_at + running.course.when(own))

    def steps_done(self, running: SimulatedAttempt) -> int:
        """Return how many steps an attempt has done."""
        # Never all steps, because the last step is done when the training ends.
        return min(self._steps - 1, int(self._steps * self._share(running) + _ROUNDING))

    def _share(self, running: SimulatedAttempt) -> float:
        if running.course is None:
            return running.share
        done = running.course.share(self._worker.clock.now_seconds - running.set_out_at)
        return running.share + (1.0 - running.share) * done

    # The training

    def _enter(self, running: SimulatedAttempt, phase: Phase) -> None:
        """Enter the next phase; a fault may be due to kill the worker in it."""
        running.phase = phase
        if self.dies_at == phase:
            self._worker.after(0.0, self._worker.crash, f"while {phase}")

    def _train(self, running: SimulatedAttempt, start: bytes) -> None:
        now, timings = self._worker.clock.now_seconds, self._environment.timings
        self._enter(running, "training")
        done = fake_files.gone_on(start)[1]
        running.start, running.share, running.loaded_at_seconds = start, done / self._steps, now
        running.loaded(done, self._steps, now)
        running.loop = self._loop_class(running, timings.snapshot_seconds, now)
        if running.share and timings.resuming_seconds:
            self._worker.after(timings.resuming_seconds, self._resumed, running)
        else:
            self._proceed(running)

    def _resumed(self, running: SimulatedAttempt) -> None:
        """Begin to train from a snapshot, unless the attempt was stopped during the restore."""
        if running.phase == "training":
            self._proceed(running)

    def _go_on(self, running: SimulatedAttempt) -> None:
        """Decide what comes next, after a snapshot was published or failed to be."""
        running.phase = "training"
        self._proceed(running)

    def _step_ended(self, running: SimulatedAttempt, course: Course, steps: int) -> None:
        """Decide what comes next, unless the attempt has stopped or saved since the step began."""
        if running.phase == "training" and running.course is course:
            running.stepped(steps, self._worker.clock.now_seconds)
            self._proceed(running)

    def _proceed(self, running: SimulatedAttempt) -> None:
        """Carry out the loop's decision; we ask it only when its decision may have changed."""
        match running.loop.next(self._worker.clock.now_seconds):
            case NextStep.TRAIN:
                if running.course is None:
                    self._set_out(running)
            case NextStep.SAVE:
                self._save_and_go_on(running)
            case NextStep.HAND_OVER:
                self._hand_over(running)
            case NextStep.STOP:
                self._end_training(running)
                self._worker.ended(running, Stopped())
            case NextStep.FINISH:
                self._finish(running)

    def _set_out(self, running: SimulatedAttempt) -> None:
        """Train until the task is done, a snapshot is due, or the attempt is to end."""
        now, timings = self._worker.clock.now_seconds, self._environment.timings
        work = (1.0 - running.share) * running.task.samples / timings.shard_samples
        course = self._environment.machines.course(self._machine, running.attempt, now, work)
        running.set_out_at, running.course = now, course
        self._worker.after(course.seconds, self._step_ended, running, course, self._steps)
        if timings.snapshot_seconds:
            wait = max(0.0, running.loop.snapshot_due_at_seconds - now)
            self._worker.after(wait, self.save_if_due)

    def _stand_still(self, running: SimulatedAttempt) -> None:
        """Pause the training while a state is written."""
        running.share, running.course = self._share(running), None
        running.phase = "saving"

    def _save_and_go_on(self, running: SimulatedAttempt) -> None:
        """Publish the state and continue training."""
        steps = running.steps_done
        self._stand_still(running)

        def published(file: PublishedFile) -> None:
            running.snapshot = Snapshot(file=file, steps_done=steps, steps_total=self._steps)
            self._worker.see("saved", running.attempt)
            if self.dies_at == "saving":
                self._worker.after(0.0, self._worker.crash, "when it has saved")
            go_on()

        def go_on(_: StoreError | None = None) -> None:
            running.loop.saved(self._worker.clock.now_seconds)
            self._go_on(running)

        self._save(running, steps, published, go_on)

    def _hand_over(self, running: SimulatedAttempt) -> None:
        """Publish the state and end; if the directory prevents that, continue training."""
        steps = running.steps_done
        self._stand_still(running)

        def published(file: PublishedFile) -> None:
            snapshot = Snapshot(file=file, steps_done=steps, steps_total=self._steps)
            self._end_training(running)
            self._worker.ended(running, snapshot)

        self._save(running, steps, published, lambda _: self._go_on(running))

    def _save(
        self,
        running: SimulatedAttempt,
        steps: int,
        published: Callable[[PublishedFile], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        self._worker.see("saves", running.attempt)
        # All words but the last say what the training depends on. A hand-over does not change that.
        content = b" ".join([*running.start.split()[:-1], str(steps).encode()])
        name = layout.attempt_name("snapshot", running.attempt, self._environment.token())

        def not_saved(error: StoreError) -> None:
            experiment = running.attempt.experiment
            self._environment.disk.delete(self._worker.host, experiment, name)
            failed(error)

        self._worker.after(
            self._environment.timings.saving_seconds,
            self._environment.disk.publish,
            self._worker,
            running.attempt.experiment,
            name,
            content,
            published,
            not_saved,
            PATIENCE_SECONDS,
            lambda: not running.cancelled,
        )

    def _end_training(self, running: SimulatedAttempt) -> None:
        """End the training, and remove a snapshot that the manager has not heard of."""
        running.course, running.phase = None, "reporting"
        withdrawn = running.withdraw_unknown()
        if withdrawn is not None:
            experiment, name = running.attempt.experiment, withdrawn.file.name
            self._environment.disk.delete(self._worker.host, experiment, name)

    def _finish(self, running: SimulatedAttempt) -> None:
        """Publish the update of an attempt that has done all its steps."""
        self._worker.see("trained", running.attempt, held=running)
        self._end_training(running)
        failure = self._failure(running.attempt)
        if failure is not None:
            self._worker.ended(running, failure)
            return
        self._enter(running, "publishing")
        update = fake_files.gone_on(running.start)[0]
        seconds = self._worker.clock.now_seconds - running.loaded_at_seconds
        self._publish(running, update, seconds)

    def _failure(self, attempt: AttemptId) -> Failure | None:
        """Return how an attempt fails; None if no fault is due."""
        task = attempt.experiment, attempt.round, attempt.shard
        how = self.fails_next.pop() if self.fails_next else ""
        if how == ALIKE:
            self._environment.hopeless.add(task)
        if task in self._environment.hopeless:
            return Failure(FailureKind.TASK, f"round {attempt.round} has no shard {attempt.shard}")
        if not how:
            return None
        # The machine is at fault and not the task, so the attempt fails like no other.
        return Failure(FailureKind(how), f"{how} on {self._worker.host}, in {attempt}")

    def _publish(self, running: SimulatedAttempt, content: bytes, seconds: float) -> None:
        """Publish the optimizer's state before the update, so that an update is always complete."""
        attempt, disk, token = running.attempt, self._environment.disk, self._environment.token()
        experiment, worker = attempt.experiment, self._worker
        state_name = layout.attempt_name("optimizer", attempt, token)

        def failed(error: StoreError) -> None:
            disk.delete(worker.host, experiment, state_name)
            self._fail(running, error)

        def publish_update(state: PublishedFile | None) -> None:
            name = layout.attempt_name("update", attempt, token)
            disk.publish(
                worker,
                experiment,
                name,
                content,
                lambda file: published(file, state),
                failed,
                is_wanted=lambda: not running.cancelled,
            )

        def published(file: PublishedFile, state: PublishedFile | None) -> None:
            if self.damages_next:
                self.damages_next -= 1
                disk.damaged.add(file.name)
            update = fake_files.update_of(file, state, running.task.samples, self._steps, seconds)
            self._enter(running, "reporting")
            worker.ended(running, update)

        if running.task.keeps_state:
            after = fake_files.state_after(content)
            disk.publish(
                worker,
                experiment,
                state_name,
                after,
                publish_update,
                failed,
                is_wanted=lambda: not running.cancelled,
            )
        else:
            publish_update(None)

    def _fail(self, running: SimulatedAttempt, error: StoreError) -> None:
        """End an attempt whose files cannot be read or written, or that was cancelled meanwhile.

        A worker that waits for the directory checks between two tries whether the manager
        cancelled.
        """
        self._enter(running, "reporting")
        stopped = running.cancelled
        end = Stopped() if stopped else Failure(FailureKind.STORE, str(error))
        self._worker.ended(running, end)
