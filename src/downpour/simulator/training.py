"""Carries out the attempts of a simulated worker: it reads, lets time pass, saves and publishes.

Its visible actions are those of `worker/task.py` and `worker/snapshots.py`. A task has a hundred
steps; the time of each follows from the course of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from downpour.errors import StoreError
from downpour.node.snapshot_schedule import PATIENCE_SECONDS, SnapshotSchedule
from downpour.node.worker import Stopped
from downpour.simulator import fake_files
from downpour.simulator.attempt import Phase, SimulatedAttempt
from downpour.simulator.environment import Environment
from downpour.simulator.machines import Course
from downpour.store import layout
from downpour.values import Failure, FailureKind, PublishedFile, Snapshot

if TYPE_CHECKING:
    from downpour.simulator.worker import SimulatedWorker

_PERCENT = 100
# At the time of a step, the share may be a rounding error below it.
_ROUNDING = 1e-9


class Training:
    """Carries out one attempt after the other; calls the worker when one has ended."""

    def __init__(self, environment: Environment, worker: SimulatedWorker, machine: str) -> None:
        self.fails_next = 0
        self.damages_next = 0
        self.dies_at: Phase | None = None
        self._environment = environment
        self._worker = worker
        self._machine = machine

    # What the worker asks for

    def begin(self, running: SimulatedAttempt) -> None:
        """Read what the attempt needs, then train."""
        experiment, task = running.attempt.experiment, running.task
        read = self._environment.disk.read

        def with_model(model: bytes) -> None:
            if task.optimizer_state is None:
                with_state(model, b"")
            else:
                state_file = task.optimizer_state
                read(
                    self._worker,
                    experiment,
                    state_file,
                    lambda state: with_state(model, state),
                    failed,
                    is_wanted=lambda: not running.cancelled,
                )

        def with_state(model: bytes, state: bytes) -> None:
            attempt = running.attempt
            place = attempt.round, attempt.shard, task.portion
            afresh = fake_files.paused(*place, model, state, 0)
            if task.snapshot is None:
                self._train(running, afresh)
            else:
                read(
                    self._worker,
                    experiment,
                    task.snapshot,
                    lambda snapshot: self._train(running, snapshot),
                    lambda _: self._train(running, afresh),
                    PATIENCE_SECONDS,
                    PATIENCE_SECONDS,
                    is_wanted=lambda: not running.cancelled,
                )

        def failed(error: StoreError) -> None:
            self._fail(running, error)

        self._enter(running, "reading")
        read(
            self._worker,
            experiment,
            task.model,
            with_model,
            failed,
            is_wanted=lambda: not running.cancelled,
        )

    def stop(self, running: SimulatedAttempt) -> None:
        """End a cancelled attempt at its step; one that is publishing goes on."""
        if running.phase == "training" and running.cancelled:
            self._end_training(running)
            self._worker.ended(running, Stopped())

    def hand_over(self, running: SimulatedAttempt) -> None:
        """Publish the state of an attempt at its next step, and end it; it trains until then.

        An attempt that does not train at present does so as soon as it goes on.
        """
        running.to_hand_over = True
        if running.phase == "training" and running.course is not None:
            steps = self._percent(running) + 1
            share = (steps / _PERCENT - running.share) / (1.0 - running.share)
            spent = self._worker.clock.now_seconds - running.set_out_at
            wait = max(0.0, running.course.when(share) - spent)
            self._worker.after(wait, self._leave_it, running, running.course, steps)

    def save_first(self, running: SimulatedAttempt) -> bool:
        """Cancel an attempt, but publish its state first; returns false if it has done no step."""
        self.look()
        in_training = running.phase in {"training", "saving"} and not running.cancelled
        running.saves_first = in_training and running.steps_done > running.steps_before
        running.cancelled = True
        if running.saves_first:
            self.hand_over(running)
        return running.saves_first

    def look(self) -> None:
        """Note how far the running attempt has come."""
        running = self._worker.node.running
        if running is not None and running.phase == "training" and running.course is not None:
            done = self._percent(running)
            running.stepped(done, self._stepped_at(running, done))

    def save_if_due(self) -> None:
        """Publish the state of the running attempt, if a snapshot is due."""
        running = self._worker.node.running
        if running is None or running.phase != "training" or running.course is None:
            return
        self.look()
        now = self._worker.clock.now_seconds
        if running.pace is None or not running.pace.is_due(running, now):
            return
        percent = running.steps_done
        self._stand_still(running)

        def published(file: PublishedFile) -> None:
            running.snapshot = Snapshot(file=file, steps_done=percent, steps_total=_PERCENT)
            if self.dies_at == "saving":
                self._worker.after(0.0, self._worker.crash, "when it has saved")
            self._saved(running, now)

        def failed(_: StoreError) -> None:
            self._saved(running, now)

        self._save(running, percent, published, failed)

    # How far it has come

    def _stepped_at(self, running: SimulatedAttempt, percent: int) -> float:
        """Return when the last step ended, or when the training began if none has."""
        now = self._worker.clock.now_seconds
        if running.course is None or running.share >= 1.0:
            return now
        own = max(0.0, percent / _PERCENT - running.share) / (1.0 - running.share)
        return min(now, running.set_out_at + running.course.when(own))

    def _percent(self, running: SimulatedAttempt) -> int:
        """Return the progress of an attempt, in percent."""
        # Never all of it: the last step is done when the training ends.
        return min(_PERCENT - 1, int(_PERCENT * self._share(running) + _ROUNDING))

    def _share(self, running: SimulatedAttempt) -> float:
        if running.course is None:
            return running.share
        done = running.course.share(self._worker.clock.now_seconds - running.set_out_at)
        return running.share + (1.0 - running.share) * done

    # The training

    def _enter(self, running: SimulatedAttempt, phase: Phase) -> None:
        """Go on to the next phase; the worker may be due to die in it."""
        running.phase = phase
        if self.dies_at == phase:
            self._worker.after(0.0, self._worker.crash, f"while {phase}")

    def _train(self, running: SimulatedAttempt, start: bytes) -> None:
        now = self._worker.clock.now_seconds
        self._enter(running, "training")
        done = fake_files.gone_on(start)[1]
        running.start, running.share, running.loaded_at_seconds = start, done / _PERCENT, now
        running.loaded(done, _PERCENT, now)
        running.pace = SnapshotSchedule(self._environment.timings.snapshot_seconds, now)
        if running.share and self._environment.timings.resuming_seconds:
            self._worker.after(self._environment.timings.resuming_seconds, self._go_on, running)
        else:
            self._go_on(running)

    def _go_on(self, running: SimulatedAttempt) -> None:
        """Train until the task is done or a snapshot is due."""
        if running.phase != "training":
            return
        if running.cancelled and not running.saves_first:
            self.stop(running)
            return
        work = (
            (1.0 - running.share) * running.task.samples / self._environment.timings.shard_samples
        )
        now = self._worker.clock.now_seconds
        running.set_out_at = now
        running.course = self._environment.machines.course(
            self._machine, running.attempt, now, work
        )
        if running.to_hand_over:
            self._leave_it(running, running.course, self._percent(running))
            return
        self._worker.after(running.course.seconds, self._trained, running, running.course)
        if running.pace is not None and self._environment.timings.snapshot_seconds:
            wait = max(0.0, running.pace.due_at_seconds - now)
            self._worker.after(wait, self.save_if_due)

    def _stand_still(self, running: SimulatedAttempt) -> None:
        """Pause the training while a state is written."""
        running.share, running.course = self._share(running), None
        running.phase = "saving"

    def _saved(self, running: SimulatedAttempt, began_at: float) -> None:
        if running.pace is not None:
            running.pace.saved(began_at, self._worker.clock.now_seconds)
        running.phase = "training"
        self._go_on(running)

    def _leave_it(self, running: SimulatedAttempt, course: Course, percent: int) -> None:
        """Publish the state and end, or go on training if it cannot be published."""
        unwanted = running.cancelled and not running.saves_first
        if running.phase != "training" or unwanted or running.course is not course:
            return
        running.to_hand_over = running.saves_first = False
        running.stepped(percent, self._worker.clock.now_seconds)
        self._stand_still(running)

        def published(file: PublishedFile) -> None:
            snapshot = Snapshot(file=file, steps_done=percent, steps_total=_PERCENT)
            self._end_training(running)
            self._worker.ended(running, snapshot)

        def failed(_: StoreError) -> None:
            running.phase = "training"
            self._go_on(running)

        self._save(running, percent, published, failed)

    def _save(
        self,
        running: SimulatedAttempt,
        percent: int,
        published: Callable[[PublishedFile], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        # All but the last word say what the training depends on, which a hand-over does not change.
        content = b" ".join([*running.start.split()[:-1], str(percent).encode()])
        name = layout.attempt_name("snapshot", running.attempt, self._environment.token())
        self._worker.after(
            self._environment.timings.saving_seconds,
            self._environment.disk.publish,
            self._worker,
            running.attempt.experiment,
            name,
            content,
            published,
            failed,
            PATIENCE_SECONDS,
            lambda: not running.cancelled,
        )

    def _end_training(self, running: SimulatedAttempt) -> None:
        """Remove a snapshot that the manager has not heard of, and train no more."""
        running.course, running.phase = None, "reporting"
        withdrawn = running.withdraw_unknown()
        if withdrawn is not None:
            experiment, name = running.attempt.experiment, withdrawn.file.name
            self._environment.disk.delete(self._worker.host, experiment, name)

    def _trained(self, running: SimulatedAttempt, course: Course) -> None:
        if running.phase != "training" or running.course is not course:
            return
        now = self._worker.clock.now_seconds
        running.stepped(_PERCENT, now)
        self._worker.see("trained", running.attempt)
        self._end_training(running)
        if self.fails_next:
            self.fails_next -= 1
            # Its machine is at fault and not the task, so it fails like no other attempt.
            reason = f"the loss of {self._worker.host} is not finite in {running.attempt}"
            self._worker.ended(running, Failure(FailureKind.NON_FINITE, reason))
            return
        self._enter(running, "publishing")
        update = fake_files.gone_on(running.start)[0]
        self._publish(running, update, now - running.loaded_at_seconds)

    def _publish(self, running: SimulatedAttempt, content: bytes, seconds: float) -> None:
        """Publish the optimizer's state, then the update, so that an update is always complete."""
        attempt, disk, token = running.attempt, self._environment.disk, self._environment.token()
        experiment, worker = attempt.experiment, self._worker

        def failed(error: StoreError) -> None:
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
            update = fake_files.update_of(file, state, running.task.samples, seconds)
            self._enter(running, "reporting")
            worker.ended(running, update)

        if running.task.keeps_state:
            state = layout.attempt_name("optimizer", attempt, token)
            after = fake_files.state_after(content)
            disk.publish(
                worker,
                experiment,
                state,
                after,
                publish_update,
                failed,
                is_wanted=lambda: not running.cancelled,
            )
        else:
            publish_update(None)

    def _fail(self, running: SimulatedAttempt, error: StoreError) -> None:
        """End an attempt whose files cannot be read or written, or that was cancelled meanwhile.

        A worker that waits for the directory checks between two tries whether it was cancelled.
        """
        self._enter(running, "reporting")
        stopped = running.cancelled
        end = Stopped() if stopped else Failure(FailureKind.STORE, str(error))
        self._worker.ended(running, end)
