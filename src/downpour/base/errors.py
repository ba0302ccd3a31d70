"""The one tree of errors, the check for optional packages, and text that fits on one line.

Every error reads as one line. `exit_status` is the command line's exit status: 2 if the user can
fix the cause by changing the request, 75 if the same request may succeed later, else 1.

Only some commands need certain libraries, which an extra of the installation (`downpour-sgd[tune]`)
brings. Everything else, above all a worker, must run without them, so only the functions that need
them import them.

Names, reasons and decisions come from other processes, from files and from users' code. Code that
shows one to a person on a terminal, in a table or in a log passes it through `one_line`; output for
programs stays unchanged.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec


class DownpourError(Exception):
    """The base of all errors that this package raises on purpose."""

    exit_status = 1


class SpecError(DownpourError):
    """The request is invalid: names the field, the value and the accepted values."""

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
    near = closest(str(word), known)
    return f"{before}did you mean {near}?" if near else ""


_SYNONYMS = {"gpu": "cuda"}
"""Known words that users mean by words which, in letters, are nearer to another one."""


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to a mistyped one; None if none is near."""
    # A prefix may give a word the opposite meaning: a user who types async does not mean sync.
    others = [one for one in known if not word.endswith(one)]
    meant = _SYNONYMS.get(word, "")
    if meant in others:
        return meant
    return next(iter(difflib.get_close_matches(word, others, n=1)), None)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Name the first few of many, and count the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
    """The manager serves a different shared directory."""


class FileMissing(StoreError):
    """A published file does not exist, although its directory can be listed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name}: no such file in the shared directory"


class FileCorrupt(StoreError):
    """A file exists, but its content is not the published one."""

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
    """No manager came while a worker waited for one; the same command may succeed later."""

    # EX_TEMPFAIL; Slurm's RequeueExit and Kubernetes' podFailurePolicy can name it
    exit_status = 75


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
    """The peer understood the call and refused it; `field` and `value` name the wrong part.

    `busy` means that the same call may succeed later, or at another manager.
    """

    exit_status = 2

    def __init__(self, field: str, reason: str, *, busy: bool = False, value: str = "") -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason
        self.value = value
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
    """A process did not start, or ended too early; the user can correct it if `asked_wrongly`."""

    def __init__(self, reason: str, *, asked_wrongly: bool = False) -> None:
        super().__init__(reason)
        self.exit_status = 2 if asked_wrongly else 1


class MachineTaken(LaunchError):
    """A notice says that this machine will be taken, so its workers have left."""

    def __init__(self, notice: str) -> None:
        super().__init__(f"the notice {notice} says that this machine will be taken")
        self.exit_status = 130  # as for Ctrl-C


class TrainingError(DownpourError):
    """Training on a shard failed; this costs the task a retry on another worker."""


class NonFinite(TrainingError):
    """A loss or a parameter became NaN or infinite."""


class UpdatesRefused(TrainingError):
    """The manager cannot aggregate some updates; names each such shard and the reason."""

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
    """An unexpected exception (a bug) stopped the manager; the next continues from the journal."""

    def __str__(self) -> str:
        return f"the manager stops because of a bug in Downpour: {super().__str__()}"


class UnfitWorker(DownpourError):
    """This worker cannot train an experiment, but other workers may be able to.

    The experiment loses no retry, and the manager gives this worker none of its further tasks.
    """


class OtherCode(UnfitWorker):
    """A file of a factory's code has changed since the submission."""

    def __init__(self, file: str, remedy: str = "") -> None:
        super().__init__(file, remedy)
        self.file = file
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.file} has changed since the experiment was submitted{self.remedy}"


class ExperimentFailed(DownpourError):
    """An experiment ended without a model; the spec is to blame if `asked_wrongly`."""

    def __init__(self, experiment: str, reason: str, *, asked_wrongly: bool = False) -> None:
        super().__init__(experiment, reason)
        self.experiment = experiment
        self.reason = reason
        self.exit_status = 2 if asked_wrongly else 1

    def __str__(self) -> str:
        return f"experiment {self.experiment} failed: {self.reason}"


class NotBegun(ExperimentFailed):
    """The manager checked a run's code and data, refused it, and removed its folder."""

    def __str__(self) -> str:
        return self.reason


class IllegalTransition(DownpourError):
    """A lifecycle's table lacks this step; the error carries all steps before it."""

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
    """Render a value for a one-line message, and shorten a long one."""
    try:
        text = repr(str(value) if hasattr(value, "__fspath__") else value).replace("\n", " ")
    except RecursionError:
        text = f"({type(value).__name__}, nested too deeply)"
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = "(a number of too many digits)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


EXTRAS: dict[str, dict[str, str]] = {
    "blocks": {"pyarrow": "pyarrow"},
    "certs": {"cryptography": "cryptography"},
    "dashboard": {"h11": "h11", "starlette": "starlette", "uvicorn": "uvicorn"},
    "digits": {"sklearn": "scikit-learn"},
    "frames": {"pandas": "pandas"},
    "lab": {"greenlet": "greenlet"},
    "metrics": {"prometheus_client": "prometheus-client"},
    "mlflow": {"mlflow": "mlflow-skinny"},
    "objects": {"obstore": "obstore"},
    "predictor": {"sklearn": "scikit-learn", "threadpoolctl": "threadpoolctl"},
    "ray": {"ray": "ray"},
    "report": {
        "jinja2": "jinja2",
        "markupsafe": "markupsafe",
        "matplotlib": "matplotlib",
        "scipy": "scipy",
    },
    "tensorboard": {"tensorboard": "tensorboard"},
    "trackio": {"trackio": "trackio"},
    "tune": {"optuna": "optuna", "matplotlib": "matplotlib"},
    "wandb": {"wandb": "wandb"},
}
"""For each extra, its modules and the packages that hold them; `pyproject.toml` says the same."""


def require(purpose: str, extra: str) -> None:
    """Check that an extra's libraries are installed, before any work; `purpose` is for users."""
    for module, package in EXTRAS[extra].items():
        if not is_installed(module):
            raise MissingPackage(purpose, package, extra)


def is_installed(module: str) -> bool:
    """Whether Python finds a module; we don't import it, because that may take seconds."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def one_line(text: str) -> str:
    r"""Return the text in one line: line breaks as spaces, other control characters as `\x1b`."""
    return text if text.isprintable() else "".join(map(_visible, text))


def shortened(text: str, limit: int = 2000) -> str:
    """Return the text in one line of a limited length."""
    line = one_line(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def last_line(text: str) -> str:
    """Return a program's last words: one line, without the program's name."""
    lines = text.strip().splitlines()
    return one_line(lines[-1].strip().removeprefix("downpour: ")) if lines else ""


_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def size_in_words(count_bytes: int, of_bytes: int = 0) -> str:
    """Return a number of bytes as "1.2 MB", or, as a part of more, as "1.2 of 4 MB"."""
    # Three digits of a little less than a unit are a whole one.
    most_bytes = max(1.0005 * max(count_bytes, of_bytes), 1.0)
    power = min(int(math.log(most_bytes, 1000)), len(_UNITS) - 1)
    whole = f" of {of_bytes / 1000**power:.3g}" if of_bytes > count_bytes else ""
    return f"{count_bytes / 1000**power:.3g}{whole} {_UNITS[power]}"


def spoken(seconds: float) -> str:
    """Format a duration, such as "43 s" or "3 h 20 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode("ascii")
