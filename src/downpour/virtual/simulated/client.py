"""A client: submits an experiment, and repeats the call until a manager acknowledges it."""

from __future__ import annotations

from typing import Any

from downpour.core.spec import ResolvedSpec
from downpour.virtual.simulated.clock import Process
from downpour.virtual.simulated.environment import Environment
from downpour.virtual.simulated.network import Answer

_AGAIN_SECONDS = 1.0


class SimulatedClient(Process):
    """Calls the managers in turn until one answers."""

    def __init__(self, environment: Environment, managers: list[str]) -> None:
        super().__init__(environment.clock, "client")
        self._environment = environment
        self._managers = managers
        self.acknowledged: set[str] = set()

    def submit(self, experiment: str, spec: ResolvedSpec) -> None:
        """Submit an experiment, repeating the call until a manager acknowledges it."""

        def taken(_: Any) -> None:
            if experiment not in self.acknowledged:
                self.acknowledged.add(experiment)
                self._environment.tell(f"{experiment} is taken in")

        self._insist(taken, "submit", experiment, spec)

    def cancel(self, experiment: str) -> None:
        """Cancel an experiment, repeating the call until a manager acknowledges it."""
        self._insist(lambda _: None, "cancel", experiment)

    def drain(self, worker: str) -> None:
        """Ask a worker once to finish its tasks and leave; the caller sees whether it does."""
        self._environment.network.call(
            self, worker, "drain", answered=lambda _: None, failed=lambda _: None
        )

    def _insist(self, answered: Answer, method: str, *args: Any) -> None:
        def failed(_: str) -> None:
            self._managers.append(self._managers.pop(0))
            self.after(_AGAIN_SECONDS, self._insist, answered, method, *args)

        self._environment.network.call(
            self, self._managers[0], method, *args, answered=answered, failed=failed
        )
