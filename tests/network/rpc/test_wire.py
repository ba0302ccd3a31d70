"""Values become messages and come back the same, or are refused."""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base import states, values
from downpour.base.errors import IncompatiblePeer
from downpour.network.rpc import PROTOCOL, frames, messages
from downpour.network.rpc.generated import ttypes
from downpour.network.rpc.messages import pack_indices, unpack_indices
from downpour.network.rpc.wire import FieldError, from_wire, reader, to_wire

_NAMES = st.text(
    st.characters(categories=["L", "N"], include_characters="-_"), min_size=1, max_size=20
)

_CHECKSUMS = st.from_regex("[0-9a-f]{32}", fullmatch=True)

_ARRAYS = st.lists(st.integers(0, 2**63 - 1), max_size=20).map(lambda many: np.array(many, int))

_ACCEPTED: dict[str, st.SearchStrategy[Any]] = {
    values.BARE_NAME: _NAMES,
    "32 hexadecimal digits": _CHECKSUMS,
    "32 hexadecimal digits, or nothing": st.just("") | _CHECKSUMS,
    "at most 500 printable characters": _NAMES,
    "a finite number": st.floats(allow_nan=False, allow_infinity=False),
    "any number; the aggregator checks it": st.floats(allow_nan=False),
    "above 0 and at most 1": st.floats(0, 1, exclude_min=True),
    "a port from 1 to 65535": st.integers(1, 65535),
}

_MESSAGES: list[type] = [
    message
    for message in {**vars(values), **vars(states), **vars(messages)}.values()
    if isinstance(message, type) and is_dataclass(message) and hasattr(ttypes, message.__name__)
]

_SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    messages.Indices: _ARRAYS,
    int: st.integers(0, 2**31 - 1),
    float: st.floats(0, allow_infinity=False),
    str: st.text(st.characters(codec="utf-8")),
    bool: st.booleans(),
    type(None): st.none(),
}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Return the values of an annotation that the protocol allows."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if get_origin(hint) is Annotated:
        rule = hint.__metadata__[0]
        return _ACCEPTED[rule.accepted] if isinstance(rule, values.Rule) else _NAMES
    if get_origin(hint) is tuple:
        return st.lists(strategy(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is Literal or isinstance(hint, type(Enum)):
        return st.sampled_from(get_args(hint) or hint)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: strategy(kind) for name, kind in hints.items()})
    return st.one_of(*map(strategy, get_args(hint)))


def through_bytes(struct: Any) -> Any:
    """Write a struct as it travels, and read it back."""
    writing, buffer = frames.accelerated()
    struct.write(writing)
    reading, _ = frames.accelerated(buffer.getvalue())
    read = type(struct)()
    read.read(reading)
    return read


def told(value: Any) -> Any:
    """A value in a form that compares by content, arrays included."""
    if isinstance(value, messages.TaskMessage):
        names = [field.name for field in fields(value)]
        return {name: told(getattr(value, name)) for name in names}
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_no_message_is_forgotten() -> None:
    """Every struct of the protocol has a value of its name, but for those that are two values."""
    structs = {name for name, kind in vars(ttypes).items() if hasattr(kind, "thrift_spec")}
    assert structs - {message.__name__ for message in _MESSAGES} == {"Indices", "Refusal"}


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: message.__name__)
@given(data=st.data())
@settings(max_examples=30)
def test_every_message_survives_the_wire(message: type, data: st.DataObject) -> None:
    """Value → struct → bytes → struct → value is the identity."""
    value = data.draw(strategy(message))
    assert told(from_wire(message, through_bytes(to_wire(value)))) == told(value)


@settings(max_examples=30)
@given(file=strategy(values.PublishedFile), count=st.integers(0, 2**40))
def test_a_task_may_carry_its_indices_as_a_file(file: values.PublishedFile, count: int) -> None:
    """A list too large for a message travels as a file, whose size must fit the count."""
    held = values.PublishedFile(name=file.name, size_bytes=4 * count, checksum=file.checksum)
    task = _task(messages.IndicesFile(width_bytes=4, count=count, file=held))
    assert told(from_wire(messages.TaskMessage, through_bytes(to_wire(task)))) == told(task)


def test_too_many_indices_do_not_go_into_a_message() -> None:
    """The sender learns that a file is needed before anything is sent."""
    with pytest.raises(ValueError, match="send a file"):
        to_wire(_task(np.arange(0, 10_000_000, 2)))


def _set(path: str, value: object) -> Callable[[Any], None]:
    """A hostile hand that changes one field of a struct."""

    def change(struct: Any) -> None:
        *way, last = path.split(".")
        for name in way:
            struct = getattr(struct, name)
        setattr(struct, last, value)

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec", None),
        ("spec.name", "../spec"),
        ("spec.name", ""),
        ("spec.name", ".hidden"),
        ("spec.name", "a/b"),
        ("spec.name", ".."),
        ("spec.name", "a\0b"),
        ("spec.name", "x" * 256),
        ("spec.name", None),
        ("spec.size_bytes", -1),
        ("spec.checksum", "short"),
        ("id.round", -1),
        ("id.experiment", "/tmp"),  # noqa: S108
        ("dataset", ".."),
        ("model", None),
        ("optimizer_state.name", "a/b"),
        ("indices", None),
    ],
)
def test_a_hostile_task_is_refused_by_field(path: str, value: object) -> None:
    """What is missing, negative or not bare is named with its path."""
    task = to_wire(_task(np.arange(3)))
    _set(path, value)(task)
    with pytest.raises(FieldError) as caught:
        from_wire(messages.TaskMessage, task)
    assert caught.value.field == path


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "two\nlines", "x" * 501])
@pytest.mark.parametrize(
    "path",
    [
        "host",
        "version",
        "presence",
        "hostname",
        "numeric_class.torch",
        "numeric_class.device",
        "numeric_class.instruction_set",
    ],
)
def test_a_worker_says_of_itself_only_short_printable_text(path: str, text: str) -> None:
    """Otherwise a member could write to the terminal of everyone who reads a record."""
    known = values.NumericClass(torch="2", device="cpu", instruction_set="avx2")
    registration = to_wire(
        messages.Registration(
            name="w", host="n1", port=1, protocol=5, version="1", presence="p",
            numeric_class=known, hostname="n1", pid=1,
        )
    )  # fmt: skip
    from_wire(messages.Registration, registration)
    _set(path, text)(registration)
    with pytest.raises(FieldError, match="at most 500 printable characters") as caught:
        from_wire(messages.Registration, registration)
    assert caught.value.field == path


def test_a_reason_is_heard_however_it_is_written() -> None:
    """A worker must be able to say that it failed; the manager takes the reason in one line."""
    heard = reader(messages.Reason)("\x1b[2Jfirst\nsecond" + "x" * 5000)
    assert heard.startswith(r"\x1b[2Jfirst second")
    assert len(heard) == 2000
    [block] = to_wire((messages.BlockDigest("no \udcff UTF-8", "0" * 32),))
    assert through_bytes(block).block == r"no \udcff UTF-8"


@pytest.mark.parametrize(
    "change",
    [
        _set("width_bytes", None),
        _set("count", 4),
        _set("packed", None),
        _set("file", ttypes.PublishedFile("f", 6, "0" * 32)),
    ],
)
def test_hostile_indices_are_refused(change: Callable[[Any], None]) -> None:
    """Width, count and bytes must fit together, and there is one list only."""
    task = to_wire(_task(np.arange(3)))
    change(task.indices)
    with pytest.raises(FieldError, match="indices"):
        from_wire(messages.TaskMessage, task)


@pytest.mark.parametrize(
    ("path", "value"), [("width_bytes", 1), ("count", 3), ("count", -2), ("file.name", "../x")]
)
def test_a_hostile_indices_file_is_refused(path: str, value: object) -> None:
    """The file's size must be that of its indices, and its name bare."""
    file = values.PublishedFile(name="f", size_bytes=8, checksum="0" * 32)
    task = to_wire(_task(messages.IndicesFile(width_bytes=4, count=2, file=file)))
    _set(path, value)(task.indices)
    with pytest.raises(FieldError, match=r"indices\.file"):
        from_wire(messages.TaskMessage, task)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_measurements_are_finite(number: float, update: values.Update) -> None:
    """Seconds that are no number never get in; a loss may be one, for the aggregator to judge."""
    struct = to_wire(update)
    struct.loss = number
    from_wire(values.Update, struct)
    struct.train_seconds = number
    with pytest.raises(FieldError, match="train_seconds"):
        from_wire(values.Update, struct)


def test_a_misfit_inside_a_list_tells_its_place(heartbeat: messages.Heartbeat) -> None:
    """The path counts the elements."""
    struct = to_wire(heartbeat)
    struct.running[0].attempt.shard = -4
    with pytest.raises(FieldError, match=r"^running\[0\]\.attempt\.shard = -4: 0 or more$"):
        from_wire(messages.Heartbeat, struct)


def test_a_state_that_nobody_knows_is_refused() -> None:
    """States travel as words; one that is not in its lifecycle is not taken for a state."""
    idle = messages.WorkerStatus(
        worker="w", address="", state=states.WorkerState.IDLE, tasks_done=0
    )
    struct = to_wire(idle)
    assert struct.state == "idle"
    struct.state = "[red]asleep"
    with pytest.raises(FieldError, match=r"state = '.red.asleep': one of awaited, idle, busy"):
        from_wire(messages.WorkerStatus, struct)


def test_a_worker_need_not_say_what_it_uses(heartbeat: messages.Heartbeat) -> None:
    """But what it says must be numbers that can be: shares are finite, counts 0 or more."""
    struct = to_wire(heartbeat)
    assert from_wire(messages.Heartbeat, struct) == heartbeat
    struct.process.cpu_share = math.nan
    with pytest.raises(FieldError, match=r"process\.cpu_share"):
        from_wire(messages.Heartbeat, struct)
    struct.process = None
    assert from_wire(messages.Heartbeat, struct).process is None


@pytest.mark.parametrize("samples", [-1, 2**63, 1.5, "ten", None])
def test_a_wrong_value_is_not_sent(samples: Any, update: values.Update) -> None:
    """A wrong type or range on this side is a defect, told with its field before it travels."""
    wrong = values.Update(
        **{f.name: getattr(update, f.name) for f in fields(update)} | {"samples": samples}
    )
    with pytest.raises((TypeError, ValueError)) as caught:
        to_wire(wrong)
    assert "Update.samples" in caught.value.__notes__[0]


def _task(indices: Any) -> messages.TaskMessage:
    file = values.PublishedFile(name="file", size_bytes=1, checksum="0" * 32)
    return messages.TaskMessage(
        id=values.AttemptId(experiment="e", round=0, shard=0, attempt=0),
        spec=file,
        dataset="digits",
        model=file,
        indices=indices,
        optimizer_state=file,
    )


def test_a_manager_of_another_protocol_can_be_asked_who_it_is() -> None:
    """What was added later may be missing, or nobody could be told that versions do not fit."""
    former: Any = ttypes.ManagerInfo(
        protocol=PROTOCOL - 1, version="0", presence_file="here", heartbeat_seconds=1.0
    )
    former.term = None
    assert from_wire(messages.ManagerInfo, through_bytes(former)).protocol == PROTOCOL - 1


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_indices_survive(indices: list[int]) -> None:
    """Whatever is packed is unpacked, in its order."""
    width, packed = pack_indices(np.array(indices, dtype=np.int64))
    assert unpack_indices(width, len(indices), packed).tolist() == indices


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 999)), min_size=1, max_size=9))
def test_whole_blocks_take_a_few_bytes_each(blocks: list[tuple[int, int]]) -> None:
    """However long they are, and in whatever order; never more than the indices would."""
    indices = np.concatenate([np.arange(begin, begin + count) for begin, count in blocks])
    width, packed = pack_indices(indices)
    assert unpack_indices(width, len(indices), packed).tolist() == indices.tolist()
    assert len(packed) <= min(16 * len(blocks), 2 * len(indices))


@pytest.mark.parametrize(("top", "width"), [(1, 2), (65535, 2), (65536, 4), (2**32, 8)])
def test_the_width_is_the_smallest_that_fits(top: int, width: int) -> None:
    """Two, four or eight bytes, by the largest index."""
    assert pack_indices(np.array([0, top]))[0] == width


def test_bytes_are_little_endian() -> None:
    """The layout is the same on every machine."""
    assert pack_indices(np.array([1, 258]))[1] == b"\x01\x00\x02\x01"


@pytest.mark.parametrize(
    ("width", "count", "data"),
    [(3, 1, b"abc"), (0, 0, b""), (2, 2, b"ab"), (2, -1, b""), (4, 1, b"ab"), (2, 2**62, b"ab"),
     (8, 1, b"\xff" * 8), (16, 1, b"a" * 15), (16, 2, bytes(8) + b"\1" + bytes(7)),
     (16, 0, bytes(16)), (16, 2, b"\xff" * 8 + b"\1" + bytes(7))],
)  # fmt: skip
def test_indices_that_do_not_fit_their_bytes_are_refused(
    width: int, count: int, data: bytes
) -> None:
    """Width, count and bytes must fit together, and an index fits 63 bits."""
    with pytest.raises(IncompatiblePeer, match="indices"):
        unpack_indices(width, count, data)


@pytest.mark.parametrize(
    "indices", [np.array([-1]), np.array([[1]]), np.array([0.5]), np.array([True])]
)
def test_only_flat_counts_are_packed(indices: npt.NDArray[np.int64]) -> None:
    """What is no index is a defect of the caller."""
    with pytest.raises(ValueError, match="indices"):
        pack_indices(indices)


def test_unpacked_indices_cannot_be_changed() -> None:
    """A task is a value, and so are its indices."""
    assert not unpack_indices(2, 1, b"ab").flags.writeable
