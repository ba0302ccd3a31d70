"""The order of a manager's commands: some wait for others, and the rest run at once.

`Effects` starts each command in its lane, in the manager (`cluster/manager/command_runner.py`) and
in the simulator (`virtual/simulated/command_runner.py`) alike. The manager's lanes are threads, and
the simulator's lanes are queues in virtual time. So if commands can overtake each other in the
manager, they can do so in the simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, assert_never

from downpour.core.scheduler import commands as do

P = ParamSpec("P")


class Effects(ABC, Generic[P]):
    """A manager's actions besides decisions.

    `P` are the arguments that an effect takes besides its command. An effect that has ended when it
    returns takes none; any other takes a function to call at its end.
    """

    def start(self, command: do.Command) -> None:  # noqa: C901, PLR0912 - one arm a command
        """Begin to carry out a command."""
        match command:
            case do.Prepare():
                self._alone(command.experiment, partial(self._prepare, command))
            case do.Assign():
                self._in_turn(command.assigned.worker, partial(self._assign, command))
            case do.Cancel():
                self._in_turn(command.worker, partial(self._cancel, command))
            case do.HandOver():
                self._in_turn(command.worker, partial(self._hand_over, command))
            case do.Gather():
                self._work(command.experiment, partial(self._gather, command))
            case do.Aggregate():
                self._work(command.experiment, partial(self._aggregate, command))
            case do.Evaluate():
                self._beside(command.experiment, partial(self._evaluate, command))
            case do.Publish():
                self._work(command.experiment, partial(self._publish, command))
            case do.Adopt():
                self._work(command.experiment, partial(self._adopt, command))
            case do.Discard():
                self._clean(command.experiment, partial(self._discard, command))
            case do.Conclude():
                self._clean(command.experiment, partial(self._conclude, command))
            case do.Dismiss():
                # This doesn't wait behind the worker's other calls. Closing the worker's client
                # ends the call in flight, which would otherwise occupy a thread until its deadline.
                self._dismiss(command.worker)
            case _:
                assert_never(command)

    # Lanes

    @abstractmethod
    def _alone(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin at once, because preparing may hang in a download or in a user's code."""

    @abstractmethod
    def _in_turn(self, worker: str, job: Callable[P, None]) -> None:
        """Begin after the earlier calls to this worker; calls to others do not wait."""

    @abstractmethod
    def _work(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin after the earlier work on parameters."""

    @abstractmethod
    def _beside(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin after the earlier evaluations, beside other work.

        Evaluation of a model runs while workers train the next round, whose aggregation must not
        wait for it.
        """

    @abstractmethod
    def _clean(self, experiment: str, job: Callable[P, None]) -> None:
        """Begin after the earlier work on parameters; a failure only leaves files behind."""

    # Effects

    @abstractmethod
    def _prepare(self, command: do.Prepare, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _assign(self, command: do.Assign, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _cancel(self, command: do.Cancel, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _hand_over(self, command: do.HandOver, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _gather(self, command: do.Gather, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _aggregate(self, command: do.Aggregate, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _evaluate(self, command: do.Evaluate, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _publish(self, command: do.Publish, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _adopt(self, command: do.Adopt, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _discard(self, command: do.Discard, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _conclude(self, command: do.Conclude, /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    @abstractmethod
    def _dismiss(self, worker: str, /) -> None:
        """Forget a worker."""
