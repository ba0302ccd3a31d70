"""Values to Thrift structs and back, by the values' own annotations; and a service for structs.

A dataclass and the struct of the same name have fields of the same names, so the mapping needs only
one rule for each kind of annotation. We compile the mapping once for each class. Reading is strict,
because messages come from the network. A required field must be present, and a number finite and
not negative. A name for the file system must be bare, and a peer's text about itself short and
printable. We put a reason in one short line. An absent field takes the dataclass's default.

An error of our tree that a service raises reaches the caller as the same error. Any other exception
is a defect, logged once, and the caller gets "internal error".
"""

from __future__ import annotations

import math
import operator
import socket
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from thrift.Thrift import TType

from downpour.base.errors import (
    IncompatiblePeer,
    Refused,
    SharedDirectoryError,
    SpecError,
    shortened,
)
from downpour.base.values import PublishedFile, Rule
from downpour.network.rpc import messages
from downpour.network.rpc.generated import Manager, Worker, ttypes
from downpour.network.rpc.generated.ttypes import Refusal, RefusalKind
from downpour.network.rpc.server import CallRejected, CallTurnedAway, Limits, Server
from downpour.network.rpc.trust import OPEN, Trust


class FieldError(IncompatiblePeer):
    """A field of a message holds a value that the protocol does not allow there."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(field, value, accepted)
        self.field = field
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.field} = {shown(self.value)}: {self.accepted}"

    def inside(self, outer: str) -> FieldError:
        """Return the same error, seen from the message that holds the field's struct."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return FieldError(f"{outer}{dot}{self.field}", self.value, self.accepted)


def shown(value: object, limit: int = 200) -> str:
    """Return a value as text in one line, cut at `limit` characters."""
    text = value if isinstance(value, Shown) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Shown(str):
    """Text that the peer has already rendered, so we don't quote it twice."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


Convert = Callable[[Any], Any]

_LIMITS = {TType.I32: 2**31, TType.I64: 2**63}
_NUMBERS: dict[Any, Rule] = {
    int: Rule(lambda number: number >= 0, "0 or more"),
    float: Rule(lambda number: math.isfinite(number) and number >= 0, "a finite number, 0 or more"),
}
"""The rules of numbers whose annotations have none."""


def to_wire(value: object) -> Any:
    """Return the struct of a value, or a list of them; raises as `_writer` says."""
    if isinstance(value, tuple):
        return list(map(to_wire, value))
    kind: Any = type(value)
    return _writer(kind)(value)


def from_wire(annotation: Any, received: Any) -> Any:
    """Convert a struct from Thrift to a value; raises `FieldError` if it is invalid."""
    return reader(annotation)(received)


@cache
def reader(annotation: Any) -> Convert:
    """Return a function that reads a struct; it raises `FieldError` with the wrong field's path."""
    if annotation == messages.Indices:
        return _read_indices
    kind, (*rules,) = _unwrapped(annotation)
    if get_origin(kind) is tuple:
        return _each(reader(get_args(kind)[0]))
    if get_origin(kind) is Literal:
        words = get_args(kind)
        return _checked(Rule(lambda word: word in words, f"one of {', '.join(words)}"))
    if isinstance(kind, type) and is_dataclass(kind):
        return _struct_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member_reader(kind)
    rule = next(iter(rules), _NUMBERS.get(kind, _same))
    return _checked(rule) if isinstance(rule, Rule) else rule


def _read_field(name: str, convert: Convert, received: Any) -> Any:
    """Convert a part that a message must have; an error names it."""
    if received is None:
        raise FieldError(name, None, "required")
    try:
        return convert(received)
    except FieldError as error:
        raise error.inside(name) from None


@cache
def _writer(annotation: Any, thrift_type: int = TType.I64) -> Convert:
    """Return a function that writes a value; its TypeError or ValueError is our bug."""
    if annotation == messages.Indices:
        return _write_indices
    kind, _ = _unwrapped(annotation)
    if get_origin(kind) is tuple:
        write = _writer(get_args(kind)[0])
        return lambda values: [write(value) for value in values]
    if isinstance(kind, type) and is_dataclass(kind):
        return _struct_writer(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member_writer(kind, thrift_type)
    scalars = {int: _counted(_LIMITS.get(thrift_type, 0)), float: float, str: _text}
    return scalars.get(kind, _same)


def _unwrapped(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type in an annotation without `| None`, and its rules."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        return _unwrapped(kinds[0]) if len(kinds) == 1 else (annotation, ())
    if get_origin(annotation) is Annotated:
        kind, *rules = get_args(annotation)
        return _unwrapped(kind)[0], tuple(rules)
    return annotation, ()


def _struct_reader(value_type: type) -> Convert:
    rows = [
        (field.name, reader(hint), field.default is not MISSING)
        for field, hint in _annotated(value_type)
    ]

    def read(struct: Any) -> Any:
        values = {}
        for name, convert, optional in rows:
            received = getattr(struct, name)
            if received is not None or not optional:
                values[name] = _read_field(name, convert, received)
        return value_type(**values)

    return read


def _struct_writer(value_type: type) -> Convert:
    """Write a value field by field; None stays unset."""
    struct_type = getattr(ttypes, value_type.__name__)
    thrift_types = {row[2]: row[1] for row in struct_type.thrift_spec if row}
    rows = [
        (field.name, _writer(hint, thrift_types[field.name]), field.default is not MISSING)
        for field, hint in _annotated(value_type)
    ]

    def write(value: Any) -> Any:
        if not isinstance(value, value_type):
            raise TypeError(f"{value_type.__name__} expected, not {value!r}")
        struct = struct_type()
        for name, convert, optional in rows:
            field_value = getattr(value, name)
            if field_value is not None or not optional:
                try:
                    setattr(struct, name, convert(field_value))
                except (TypeError, ValueError) as error:
                    error.add_note(f"in {value_type.__name__}.{name} = {field_value!r}")
                    raise
        return struct

    return write


def _annotated(value_type: Any) -> list[tuple[Any, Any]]:
    hints = get_type_hints(value_type, include_extras=True)
    return [(field, hints[field.name]) for field in fields(value_type)]


def _same(value: Any) -> Any:
    return value


def _checked(rule: Rule) -> Convert:
    def check(value: Any) -> Any:
        if not rule.accepts(value):
            raise FieldError("", value, rule.accepted)
        return value

    return check


def _member_reader(kind: type[Enum]) -> Convert:
    """Read an enum's member from Thrift's enum of that name, or from its word."""

    def read(received: Any) -> Any:
        if not isinstance(received, str):
            return kind[received.name]
        try:
            return kind(received)
        except ValueError:
            words = ", ".join(str(member.value) for member in kind)
            raise FieldError("", received, f"one of {words}") from None

    return read


def _member_writer(kind: type[Enum], thrift_type: int) -> Convert:
    """Write a member as its word if the IDL has text there, else as the number of its name."""
    if thrift_type == TType.STRING:
        return lambda value: kind(value).value
    numbers = getattr(ttypes, kind.__name__)
    return lambda value: numbers[kind(value).name]


def _each(read: Convert) -> Convert:
    def read_all(structs: list[Any]) -> tuple[Any, ...]:
        return tuple(_read_field(f"[{n}]", read, struct) for n, struct in enumerate(structs))

    return read_all


def _counted(limit: int) -> Convert:
    def count(value: Any) -> int:
        # This also takes numpy's integers, and refuses a float, which `int` would cut off.
        number = operator.index(value)
        if not 0 <= number < limit:
            raise ValueError(f"{number} is not in 0..{limit - 1}")
        return number

    return count


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be text, not {value!r}")
    # Of a file's name that is not UTF-8, Python makes text that no message can carry.
    return value.encode(errors="backslashreplace").decode()


def _read_indices(struct: Any) -> messages.Indices:
    """Read packed indices as an array; a file of indices stays a file, which the worker reads."""
    width, count = struct.width_bytes, struct.count
    if width is None or count is None or (struct.packed is None) == (struct.file is None):
        raise FieldError("", struct, "a width, a count, and either packed bytes or a file")
    if struct.packed is not None:
        try:
            return messages.unpack_indices(width, count, struct.packed)
        except IncompatiblePeer as error:
            raise FieldError("", count, str(error)) from None
    file: PublishedFile = _read_field("file", reader(PublishedFile), struct.file)
    fits = (
        width * count == file.size_bytes if width in (2, 4, 8) else width == messages.STRETCH_BYTES
    )
    if count < 0 or not fits:
        raise FieldError("file.size_bytes", file.size_bytes, f"{count} indices of {width} bytes")
    return messages.IndicesFile(width_bytes=width, count=count, file=file)


def _write_indices(indices: messages.Indices) -> Any:
    if isinstance(indices, messages.IndicesFile):
        file = _writer(PublishedFile)(indices.file)
        return ttypes.Indices(width_bytes=indices.width_bytes, count=indices.count, file=file)
    width, packed = messages.pack_indices(indices)
    if len(packed) > messages.PACKED_BYTES_MAX:
        raise ValueError(f"{indices.size} indices are too many for a message: send a file")
    return ttypes.Indices(width_bytes=width, count=indices.size, packed=packed)


def thrift_name(name: str) -> str:
    """Return Thrift's name of a method: report_update is reportUpdate."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@cache
def types_of(declared: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """Return the annotations of a declared call: its arguments' by name, and its answer's."""
    hints = get_type_hints(declared, include_extras=True)
    answer = hints.pop("return")
    return hints, answer


def kinds_of_refusals() -> list[str]:
    """Return the names of all kinds of refusals."""
    return [kind.name for kind in RefusalKind]


def serve_manager(
    service: messages.ManagerService,
    host: str,
    port: int,
    limits: Limits | None = None,
    trust: Trust = OPEN,
    on_end: Callable[[], None] = lambda: None,
    listener: socket.socket | None = None,
) -> Server:
    """Return the server of a manager, bound to its port; see `Server` and `listen`."""
    processor = _processor(service, messages.ManagerService, Manager)
    return Server(processor, host, port, limits, trust, on_end, listener)


def serve_worker(
    service: messages.WorkerService, host: str, port: int, trust: Trust = OPEN
) -> Server:
    """Return the server of a worker, bound to its port; see `Server` and `listen`."""
    return Server(_processor(service, messages.WorkerService, Worker), host, port, trust=trust)


def _processor(service: object, interface: type, module: ModuleType) -> Any:
    """Adapt the methods that the interface declares, under Thrift's names for them."""
    calls = {}
    # We go through the interface, because no peer may call the service's other methods.
    for name, declared in vars(interface).items():
        if not name.startswith("_"):
            method = thrift_name(name)
            refuses = hasattr(getattr(module, f"{method}_result"), "refusal")
            calls[method] = _adapted(getattr(service, name), declared, refuses=refuses)
    return module.Processor(SimpleNamespace(**calls))


def _adapted(
    call: Callable[..., Any], declared: Callable[..., Any], *, refuses: bool
) -> Callable[..., Any]:
    """Wrap a method: structs → values, the call, its answer → struct, its errors → IDL's."""
    hints, answer = types_of(declared)
    write = _writer(answer)
    arguments = tuple((n, reader(hint), NoneType in get_args(hint)) for n, hint in hints.items())

    def serve(*structs: Any) -> Any:
        try:
            values = [
                None if struct is None and optional else _read_field(name, read, struct)
                for (name, read, optional), struct in zip(arguments, structs, strict=True)
            ]
            return write(call(*values))
        except (IncompatiblePeer, Refused, SharedDirectoryError, SpecError) as error:
            if refuses:
                raise _refusal(error) from None
            # The IDL declares no refusal for this call, so the error goes as one of Thrift's own.
            if isinstance(error, IncompatiblePeer):
                raise CallRejected(message=shortened(str(error))) from None
            # A replaced manager is stopping, but its workers go on sending heartbeats.
            if isinstance(error, Refused) and error.busy:
                raise CallTurnedAway(message=shortened(str(error))) from None
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            # Thrift's processor lets these pass, which would end this thread without an answer.
            raise RuntimeError("a call tried to end the process that serves it") from error

    return serve


def _refusal(error: Exception) -> Refusal:
    """Translate an error of our tree into a refusal; the inverse of `connection._refused`."""
    match error:
        case SpecError() | FieldError():
            kind, field, value, reason = RefusalKind.ASKED, error.field, error.value, error.accepted
        case SharedDirectoryError():
            kind, field = RefusalKind.SHARED_DIRECTORY, "shared_dir"
            value, reason = Shown(error.path), error.reason
        case Refused():
            kind = RefusalKind.BUSY if error.busy else RefusalKind.UNKNOWN
            field, value, reason = error.field, Shown(error.value), error.reason
        case _:
            kind, field = RefusalKind.INCOMPATIBLE, ""
            value, reason = Shown(), str(error)
    return Refusal(kind, shortened(field), shortened(shown(value)), shortened(reason))
