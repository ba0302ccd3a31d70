"""The calls that a simulated manager answers, like `cluster/manager/service.py`."""

from __future__ import annotations

from abc import abstractmethod

from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, Progress, Snapshot, SystemState, Update
from downpour.core.node.manager import (
    Question,
    heartbeat_reply,
)
from downpour.core.scheduler import events as on
from downpour.core.spec import ResolvedSpec
from downpour_lab.simulated.command_runner import SimulatedCommandRunner
from downpour_lab.simulated.directory_work import Commander
from downpour_lab.simulated.environment import Environment
from downpour_lab.simulated.machines import labels_of
from downpour_lab.simulated.network import Answer, Refusal, RegistrationReply


class ManagerCalls(Commander):
    """A manager that workers and clients call; `SimulatedManager` drives its node."""

    role = "manager"
    environment: Environment
    runner: SimulatedCommandRunner

    def __init__(self, environment: Environment, host: str) -> None:
        super().__init__(environment.clock, host)
        self.environment = environment
        self._submitted: set[str] = set()

    @abstractmethod
    def post(self, event: on.Event, answer: Answer | None = None) -> None:
        """Queue an event; answer it when it is journaled and its commands have begun."""

    @abstractmethod
    def ask(self, question: Question, answer: Answer) -> None:
        """Queue a question, to answer between two events."""

    def connection_ended(self, host: str) -> None:
        """Call the workers of a host whose connections have ended."""
        self.runner.connection_ended(host)

    def register_worker(
        self, answer: Answer, name: str, address: str, identity: int, running: AttemptId | None
    ) -> None:
        """Register a worker, once it answers at its address."""

        def called_back(answering: str) -> None:
            if answering != name:
                answer(Refusal(f"{answering} answers there"))
                return
            worker = self.runner.enter(name, address, identity)
            event = on.WorkerJoined(
                at_seconds=self.now_seconds,
                worker=worker,
                running=running,
                labels=labels_of(address),
            )
            self.post(event, lambda _: answer(RegistrationReply(worker, self.term)))

        self.environment.network.call(
            self,
            address,
            "ping",
            answered=called_back,
            failed=lambda reason: answer(Refusal(f"cannot be called back: {reason}")),
        )

    def heartbeat(
        self, answer: Answer, worker: str, running: tuple[Progress, ...], system: SystemState
    ) -> None:
        """Take a heartbeat; answer whether we know the worker, and what it should not run."""
        event = on.HeartbeatReceived(
            at_seconds=self.now_seconds, worker=worker, running=running, system=system
        )
        self.post(event)
        self.ask(
            lambda core: heartbeat_reply(
                core, worker, running, can_call=self.runner.can_call(worker)
            ),
            answer,
        )

    def report_update(
        self, answer: Answer, worker: str, attempt: AttemptId, update: Update
    ) -> None:
        """Take an update."""
        self.post(
            on.UpdatePublished(
                at_seconds=self.now_seconds, worker=worker, attempt=attempt, update=update
            ),
            answer,
        )

    def report_failure(
        self, answer: Answer, worker: str, attempt: AttemptId, kind: FailureKind, reason: str
    ) -> None:
        """Note that an attempt has failed."""
        self.post(
            on.AttemptFailed(
                at_seconds=self.now_seconds,
                worker=worker,
                attempt=attempt,
                failure=kind,
                reason=reason,
            ),
            answer,
        )

    def report_hand_over(
        self, answer: Answer, worker: str, attempt: AttemptId, snapshot: Snapshot
    ) -> None:
        """Take the snapshot with which a worker stopped an attempt."""
        event = on.HandedOver(
            at_seconds=self.now_seconds, worker=worker, attempt=attempt, snapshot=snapshot
        )
        self.post(event, answer)

    def leave(self, answer: Answer, worker: str) -> None:
        """Remove a worker that leaves."""
        event = on.WorkerLeft(at_seconds=self.now_seconds, worker=worker, reason="told to stop")
        self.post(event, answer)

    def submit(self, answer: Answer, experiment: str, spec: ResolvedSpec) -> None:
        """Submit an experiment; a repeated request waits for the first one and adds nothing."""
        now = self.now_seconds
        if experiment in self._submitted or experiment in self.core.state.experiments:
            self.post(on.Tick(at_seconds=now), answer)
            return
        self._submitted.add(experiment)
        self.post(on.ExperimentSubmitted(at_seconds=now, experiment=experiment, spec=spec), answer)

    def cancel(self, answer: Answer, experiment: str) -> None:
        """Cancel an experiment."""
        event = on.ExperimentCancelled(
            at_seconds=self.now_seconds, experiment=experiment, reason="cancelled by request"
        )
        self.post(event, answer)
