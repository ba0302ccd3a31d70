"""The machines of simulated workers that follow given conditions, round by round."""

from __future__ import annotations

from downpour.base.values import AttemptId, SystemState
from downpour.virtual.policylab.conditions import Conditions
from downpour.virtual.policylab.curves import Stretch
from downpour.virtual.simulated.machines import Course


class GivenMachines:
    """Machines under given conditions; the first of `names` is the first host.

    A round begins when the first worker trains in it. All machines are then in the newest round.
    """

    def __init__(self, conditions: Conditions, names: tuple[str, ...]) -> None:
        self._conditions = conditions
        self._hosts = {name: host for host, name in enumerate(names)}
        self._began_at: dict[int, float] = {}
        self._newest = 0

    def course(self, machine: str, attempt: AttemptId, at_seconds: float, work: float) -> Course:
        """Return the course of a training that begins now."""
        number = attempt.round
        began_at = self._began_at.setdefault(number, at_seconds)
        self._newest = max(self._newest, number)
        curve = self._conditions.curve(number, self._hosts[machine])
        return Stretch(curve, at_seconds - began_at, work)

    def state(self, machine: str, at_seconds: float) -> SystemState:
        """Return the machine's state, which a heartbeat reports now."""
        since = at_seconds - self._began_at.get(self._newest, at_seconds)
        return self._conditions.state(self._newest, self._hosts[machine], since)
