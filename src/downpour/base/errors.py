"""The one tree of errors; the only module that everything may import.

::

    DownpourError
    ├── SpecError                what was asked for is invalid: field, value, what is accepted
    ├── StoreError               the shared directory, or a file in it, cannot be used
    │   ├── SharedDirectoryError     the folder: missing, not writable
    │   │   └── OtherDirectory           it is not the manager's
    │   ├── FileMissing              a published file does not exist
    │   └── FileCorrupt              a file is short, altered or not what it claims to be
    ├── ProtocolError            a call to another process failed
    │   ├── Unreachable              no process answers at the address
    │   ├── ComeAgain                a worker's manager did not come; it may be there later
    │   ├── DeadlineExceeded         there was no answer within the deadline
    │   ├── IncompatiblePeer         another version, or an invalid message
    │   ├── Untrusted                one side did not accept the credentials of the other
    │   └── Refused                  the peer understood the call and refused it
    ├── MissingPackage           an optional library is not installed; names the extra with it
    ├── LaunchError              a process could not be started, or died before it was ready
    ├── TrainingError            the task went wrong
    │   ├── NonFinite                NaN or infinity in a loss or in parameters
    │   ├── UpdatesRefused           updates that cannot be aggregated: {shard: reason}
    │   └── OutOfMemory              the worker's memory, or its accelerator's
    ├── FailStop                 a defect ended the manager; what it acknowledged is in the journal
    ├── UnfitWorker              this worker cannot train the experiment, another one may
    │   └── OtherCode                a factory's code is not what the experiment was submitted with
    ├── ExperimentFailed         an experiment that ended without a model; carries the cause
    │   └── NotBegun                 refused before its first round; nothing is left of it
    └── IllegalTransition        a lifecycle table was violated: a defect of this program

Every error reads as one line. `exit_status` is what the command line exits with: 2 if the user can
correct the cause by changing what was asked for, 75 if the same may succeed later, else 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class DownpourError(Exception):
    """The base of all errors that this package raises on purpose."""

    exit_status = 1


class SpecError(DownpourError):
    """What was asked for is invalid: names the field, the value and what is accepted."""

    exit_status = 2

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(field, value, accepted)
        self.field = field
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.field} = {_shown(self.value)}: {self.accepted}"


def did_you_mean(word: object, known: Iterable[str], before: str = "; ") -> str:
    """Return a question that names the known word nearest to a mistyped one; "" if none is near."""
    # A prefix may make the opposite of a word: who asks for async does not mean sync.
    others = [one for one in known if not str(word).endswith(one)]
    near = difflib.get_close_matches(str(word), others, n=1)
    return f"{before}did you mean {near[0]}?" if near else ""


class StoreError(DownpourError):
    """The shared directory, or a file in it, cannot be used."""


class SharedDirectoryError(StoreError):
    """The shared directory itself cannot be used: names the folder and the reason."""

    exit_status = 2

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(path, reason)
        self.path = str(path)
        self.reason = reason

    def __str__(self) -> str:
        return f"shared directory {self.path}: {self.reason}"


class OtherDirectory(SharedDirectoryError):
    """A manager serves another shared directory than this one."""


class FileMissing(StoreError):
    """A published file does not exist, although its directory can be listed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name}: no such file in the shared directory"


class FileCorrupt(StoreError):
    """A file exists, but it is not what was published under its name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class ProtocolError(DownpourError):
    """A call to another process failed."""


class Unreachable(ProtocolError):
    """No process answers at an address."""

    exit_status = 2

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address} cannot be reached: {self.reason}"


class ComeAgain(ProtocolError):
    """The manager did not come while a worker waited for it; the same command may succeed later."""

    exit_status = (
        75  # EX_TEMPFAIL; Slurm's RequeueExit and Kubernetes' podFailurePolicy can name it
    )


class DeadlineExceeded(ProtocolError):
    """A call took longer than its deadline; whether it took effect is unknown."""


class IncompatiblePeer(ProtocolError):
    """The peer speaks another version of the protocol, or sent an invalid message."""

    exit_status = 2


class Untrusted(ProtocolError):
    """One side did not accept the token or the certificate of the other."""

    exit_status = 2

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address} {self.reason}"


class Refused(ProtocolError):
    """The peer understood the call and refused it; `field` names what was wrong with it.

    `busy` means that the same call may succeed later, or at another manager.
    """

    exit_status = 2

    def __init__(self, field: str, reason: str, *, busy: bool = False) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason
        self.busy = busy

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class MissingPackage(DownpourError):
    """A library that `purpose` needs is not installed; the extra `extra` brings it."""

    exit_status = 2

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(purpose, package, extra)
        self.purpose = purpose
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.purpose} needs {self.package}; install downpour-sgd[{self.extra}]"


class LaunchError(DownpourError):
    """A process could not be started, or has ended while it was needed.

    `asked_wrongly` is true if the user can correct the cause.
    """

    def __init__(self, reason: str, *, asked_wrongly: bool = False) -> None:
        super().__init__(reason)
        self.exit_status = 2 if asked_wrongly else 1


class TrainingError(DownpourError):
    """Training on a shard failed; costs a retry on another worker."""


class NonFinite(TrainingError):
    """A loss or a parameter became NaN or infinite."""


class UpdatesRefused(TrainingError):
    """Updates of a round that cannot be aggregated: every such shard, with the reason."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = dict(sorted(reasons.items()))

    def __str__(self) -> str:
        lines = [f"shard {shard}: {reason}" for shard, reason in self.reasons.items()]
        more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
        return f"updates refused: {'; '.join(lines[:3])}{more}"


class OutOfMemory(TrainingError):
    """The memory of the worker, or of its accelerator, is too small."""


class FailStop(DownpourError):
    """An unexpected exception, a defect of this program, has ended the manager.

    What the manager acknowledged is in the journal, from which the next one continues.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the manager stops because of a bug in Downpour: {self.cause}"


class UnfitWorker(DownpourError):
    """This worker cannot train an experiment, for a reason that other workers need not share.

    It costs the experiment no retry: this worker is given nothing more of it.
    """


class OtherCode(UnfitWorker):
    """A file of a factory's code is not the one that the experiment was submitted with."""

    def __init__(self, file: str, remedy: str = "") -> None:
        super().__init__(file, remedy)
        self.file = file
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.file} has changed since the experiment was submitted{self.remedy}"


class ExperimentFailed(DownpourError):
    """An experiment ended without a model.

    `asked_wrongly` is true if the cause is in the spec, which the user can correct.
    """

    def __init__(self, experiment: str, reason: str, *, asked_wrongly: bool = False) -> None:
        super().__init__(experiment, reason)
        self.experiment = experiment
        self.reason = reason
        self.exit_status = 2 if asked_wrongly else 1

    def __str__(self) -> str:
        return f"experiment {self.experiment} failed: {self.reason}"


class NotBegun(ExperimentFailed):
    """A run that was refused once its code and data were looked at; its folder is removed."""

    def __str__(self) -> str:
        return self.reason


class IllegalTransition(DownpourError):
    """A step that a lifecycle's table does not have; carries all steps before it."""

    def __init__(self, who: str, state: str, step: str, story: tuple[str, ...]) -> None:
        super().__init__(who, state, step, story)
        self.who = who
        self.state = state
        self.step = step
        self.story = story

    def __str__(self) -> str:
        story = ", ".join(self.story)
        return f"{self.who}: no step '{self.step}' from '{self.state}' (story: {story})"


def _shown(value: object, limit: int = 80) -> str:
    """Render a value for a one-line message, cut where it would flood the line."""
    try:
        text = repr(str(value) if hasattr(value, "__fspath__") else value).replace("\n", " ")
    except RecursionError:
        text = f"({type(value).__name__}, nested too deeply)"
    return text if len(text) <= limit else text[: limit - 1] + "…"
