"""Options: fields of frozen dataclasses that users may set, each declared once.

A command's flags, its help, the keys of `[launch]`, environment variables and the command line of a
child process all follow from the fields. A call of a shared option below makes a field.
"""

from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from functools import partial
from typing import Any, Literal

from downpour.base.errors import SpecError
from downpour.base.names import AUTO, DEVICE_NAMES
from downpour.base.values import DEFAULT_PORT, DEFAULT_SHARED

_KEY = "downpour option"


@dataclass(frozen=True, slots=True)
class OptionText:
    """The help of an option, and the form in which users give it."""

    help: str
    metavar: str = ""
    default: str | bool | None = None
    """Shown in place of the value; None shows the value."""
    path: bool = False
    """In a file, the value is relative to the file's folder."""
    _: KW_ONLY
    flag: str = ""
    """The flag, or two of them, if it differs from the field's name."""
    variable: str = ""
    title: str | None = None
    reads: Literal["text", "path", "folder", "location", "count"] = "text"
    """The meaning of a text: a `folder` exists, a `location` may be an object store's URL, and a
    file may give a `count` as a number."""
    is_argument: bool = False

    def flags(self, name: str) -> list[str]:
        """Return the flags of the field with this name."""
        return self.flag.split() or [f"--{name.replace('_', '-')}"]

    def key(self, name: str) -> str:
        """Return the field's name in a file and in errors, which resembles the flag."""
        return self.flags(name)[0][2:].replace("-", "_")


def option(value: Any, text: str, metavar: str = "", **more: Any) -> Any:
    """Return a field with its default value and help; `more`, as `path`, is of `OptionText`."""
    return field(default=value, metadata={_KEY: OptionText(text, metavar, **more)})


def flag(text: str, **more: Any) -> Any:
    """Return an option that takes no value; it is off unless the user gives it."""
    return option(value=False, text=text, **more)


def argument(text: str, metavar: str, value: Any = MISSING, **more: Any) -> Any:
    """Return a field that users set by its place; without a value, they must."""
    return option(value, text, metavar, is_argument=True, **more)


def options_of(kind: type | None) -> dict[str, tuple[Field[Any], OptionText]]:
    """Return the options of a dataclass by name."""
    declared = () if kind is None else fields(kind)
    return {one.name: (one, one.metadata[_KEY]) for one in declared if _KEY in one.metadata}


def words_of(values: Any) -> list[str]:
    """Return the words that set a dataclass's options on a command line.

    A default is left out, unless the option has a variable, which may differ in the other process.
    """
    words: list[str] = []
    for name, (declared, text) in options_of(type(values)).items():
        value, named = getattr(values, name), text.flags(name)[0]
        if (
            text.is_argument
            or value in ("", (), None)
            or (value == declared.default and not text.variable)
        ):
            continue
        if isinstance(value, bool):
            words += [named] * value
        else:
            words += option_words(named, value)
    return words


def option_words(flag: str, value: Any) -> list[str]:
    """Return the words that give an option its value, or each of its values."""
    texts = map(str, value if isinstance(value, list | tuple) else [value])
    # A value that begins with a dash would pass for a flag.
    pairs = ([f"{flag}={text}"] if text.startswith("-") else [flag, text] for text in texts)
    return [word for pair in pairs for word in pair]


manager = partial(
    option,
    value="",
    text="The manager's address.",
    metavar="HOST:PORT",
    variable="DOWNPOUR_MANAGER",
    default="that of the leader in the shared directory",
)
location = partial(
    option,
    value=DEFAULT_SHARED,
    text="The shared directory, as this machine sees it, or an object store as s3://BUCKET/PREFIX "
    "(gs, az).",
    metavar="DIR|URL",
    flag="--shared",
    variable="DOWNPOUR_SHARED",
    reads="location",
)
data_dir = partial(
    option,
    value=None,
    text="A folder of datasets in torchvision's layout (MNIST/raw/...).",
    metavar="DIR",
    variable="DOWNPOUR_DATA",
    reads="folder",
)
port = partial(option, value=DEFAULT_PORT, text="The port; 0: any free one.", metavar="N")
patience = partial(
    option,
    value=1.0,
    text="Multiplies every timeout: for heartbeats, progress and missing files.",
    metavar="FACTOR",
)
metrics_port = partial(
    option,
    value=None,
    text="Serve metrics for Prometheus at this port; 0: any free one.",
    metavar="N",
    default="not served",
)
on_event = partial(
    option,
    value="",
    text="Run a command, without a shell, when an experiment finishes, fails, is cancelled, or "
    "waits for a worker. DOWNPOUR_EVENT, DOWNPOUR_EXPERIMENT, DOWNPOUR_NAME, DOWNPOUR_STATE and "
    "DOWNPOUR_REASON describe the event, as does JSON on standard input.",
    metavar="COMMAND",
    default="none",
)
device = partial(
    option,
    value=AUTO,
    text="The device to train on; auto: the best that this machine has.",
    metavar=DEVICE_NAMES,
)
notice = partial(
    option,
    value="",
    text="Leave before this machine is taken, as on SIGTERM: when the file appears (an absolute "
    "path), or when the command, which runs every three seconds, exits with 0.",
    metavar="FILE|COMMAND",
    default="signals alone",
)
LOADERS_MAX = 64
loaders = partial(
    option,
    value=AUTO,
    text="How many processes read examples ahead for each worker, and for evaluations; auto: as "
    "many as pay off, on cores that are idle. The resulting bytes don't depend on N.",
    metavar="N|auto",
    reads="count",
)


def loaders_of(text: str) -> int | None:
    """Return the number of loaders that a user asks for; None: as many as pay off."""
    if text == AUTO:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= LOADERS_MAX):
        accepted = f"must be {AUTO} or a whole number from 0 to {LOADERS_MAX}"
        raise SpecError("loaders", text, accepted)
    return int(text)


CACHE_VARIABLE = "DOWNPOUR_CACHE"
CACHE = "8GiB"
cache = partial(
    option,
    value="",
    text="How much of the blocks of a bucket's examples this machine keeps on its disk; workers of "
    "one machine share them.",
    metavar="SIZE",
    default=CACHE,
    variable=CACHE_VARIABLE,
)


def cache_of(text: str) -> int:
    """Return the bytes of a size such as 50G; without one, the default's."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text or CACHE))
    except ValidationError:
        raise SpecError("cache", text, "must be a size, such as 50G or 512MiB") from None


CONNECT_SECONDS = 60.0
"""On all machines that we tried, a new manager has read all journals by then."""
connect_seconds = partial(
    option,
    value=CONNECT_SECONDS,
    text="Seconds to wait for a manager that does not answer yet.",
    metavar="X",
)
_DAY_SECONDS = 86400


def checked_seconds(field: str, seconds: float) -> float:
    """Return a duration if it is valid."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= _DAY_SECONDS:
        accepted = f"must be a number of seconds from 0 to {_DAY_SECONDS}"
        raise SpecError(field, seconds, accepted)
    return seconds
