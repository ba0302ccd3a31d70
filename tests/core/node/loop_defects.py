"""Step loops with one defect each, which simulated workers must show."""

from downpour.core.node.attempt import NextStep, StepLoop


class NeverStops(StepLoop):
    """Trains a cancelled attempt to its end."""

    def next(self, at_seconds: float) -> NextStep:
        step = super().next(at_seconds)
        return NextStep.TRAIN if step is NextStep.STOP else step


class NeverHandsOver(StepLoop):
    """Forgets what it is asked for while it trains."""

    def next(self, at_seconds: float) -> NextStep:
        step = super().next(at_seconds)
        return NextStep.TRAIN if step is NextStep.HAND_OVER else step


class StopsWhatItShouldSave(StepLoop):
    """Looks first whether the attempt is cancelled, and so saves nothing when its worker leaves."""

    def next(self, at_seconds: float) -> NextStep:
        self._held.to_save = self._held.to_save and not self._held.cancelled
        return super().next(at_seconds)


class SavesWhatIsCancelled(StepLoop):
    """Saves the state of an attempt that was stopped for another one."""

    def next(self, at_seconds: float) -> NextStep:
        step = super().next(at_seconds)
        return NextStep.HAND_OVER if step is NextStep.STOP else step


class SavesBeforeItWasHeard(StepLoop):
    """Publishes the next snapshot although the manager may not know the last."""

    def next(self, at_seconds: float) -> NextStep:
        self._held.known_snapshot = self._held.snapshot
        return super().next(at_seconds)


class FinishesEarly(StepLoop):
    """Publishes the update one step too early."""

    def next(self, at_seconds: float) -> NextStep:
        step = super().next(at_seconds)
        last = self._held.steps_done == self._held.steps_total - 1
        return NextStep.FINISH if last and step is NextStep.TRAIN else step
