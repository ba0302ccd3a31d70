"""Attempts, workers and numeric classes, as the tables of a record have them."""

from pathlib import Path
from typing import Any

import pytest

from downpour.base.states import WorkerState
from downpour.base.values import NumericClass
from downpour.network.rpc.messages import Status, WorkerStatus
from downpour.record.record_lines import (
    Dated,
    DisturbedLine,
    OtherPackagesLine,
    RecordLine,
    ResourcesUsedLine,
    Sample,
)
from downpour.record.result import Result
from downpour.record.result_parts import NOT_VERIFIED, mixture_now, mixture_of, split_of
from downpour.record.rows import Rows
from downpour.record.study_result import read_one
from downpour.record.tables import Tables
from downpour.record.timeline import disturbed_seconds, resources, worker_changes
from downpour.record.view import to_fields
from downpour.show.dashboard.model import RecordTables
from downpour.show.report import facts_of
from downpour.show.tables.terminal_tables import result_table
from tests.record.lines import (
    aggregated,
    assigned,
    dated,
    failed,
    folded,
    joined,
    left,
    prepared,
    submitted,
    updated,
)

RECORDED = Path(__file__).parents[1] / "recorded" / "gestures"
Ends = list[tuple[str, int, float, float, str, bool]]


def ends(*record: Dated) -> Ends:
    """The worker, shard, begin, end, outcome and `last` of each attempt."""
    return [
        (s.worker, s.shard, s.begin_seconds, s.end_seconds, s.outcome, s.last)
        for s in Rows(folded(*record)).finished().attempt_spans()
    ]


def test_attempts_begin_and_end_as_recorded() -> None:
    """Seconds count from the first assignment; each attempt has its outcome."""
    told = ends(
        (5.0, assigned(0)),
        (5.5, assigned(1, worker="b")),
        (7.0, failed(0)),
        (7.5, assigned(0, 1, "b")),
        (8.0, updated(1, worker="b")),
        (9.0, updated(0, 1, "b")),
        (9.25, assigned(0, worker="b", round=1)),
        (9.5, assigned(2)),
        (11.0, failed(9, 9)),
    )
    assert told == [
        ("a", 0, 0.0, 2.0, "failed", False),
        ("b", 1, 0.5, 3.0, "trained", False),
        ("b", 0, 2.5, 4.0, "trained", True),
        ("b", 0, 4.25, 6.0, "open", False),
        ("a", 2, 4.5, 6.0, "open", False),
    ]


def test_moves_and_needless_copies_are_no_failures() -> None:
    """A copy ends when the other attempt's update is accepted."""
    told = ends(
        (0.0, assigned(0)),
        (0.0, assigned(1)),
        (1.0, failed(0, 0, "handed_over")),
        (1.0, assigned(0, 1, "b")),
        (2.0, assigned(1, 1, "c")),
        (2.0, assigned(0, 2, "d")),
        (3.0, failed(0, 2, "cancelled")),
        (4.0, updated(1, 1, "c")),
        (5.0, updated(0, 1, "b")),
        (9.0, assigned(2)),
    )
    assert {(shard, worker): (end, how) for worker, shard, _, end, how, _ in told} == {
        (0, "a"): (1.0, "moved"),
        (0, "b"): (5.0, "trained"),
        (0, "d"): (3.0, "stopped"),
        (1, "a"): (4.0, "stopped"),
        (1, "c"): (4.0, "trained"),
        (2, "a"): (9.0, "open"),
    }


LOST = [(1.0, assigned(0)), (3.0, updated(0)), (60.0, failed(0, 0, "store"))]
LOST += [(61.0, assigned(0, 1)), (62.0, assigned(1, worker="b"))]
OUT_OF_STEP = [(0.0, submitted(2)), (0.0, assigned(0)), (0.0, assigned(1, worker="b"))]
OUT_OF_STEP += [(1.0, updated(0)), (2.0, aggregated(0, parts=((0, 0),), staleness=(0,)))]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        pytest.param([], [], id="no assignment"),
        pytest.param(
            [(0.0, assigned(0)), (1.0, updated(0))],
            [(1.0, "trained", False)],
            id="nothing waits for a lone shard",
        ),
        pytest.param(
            LOST,
            [(2.0, "failed", False), (61.0, "open", False), (61.0, "open", False)],
            id="a lost update ended its attempt when it was published",
        ),
        pytest.param(
            [*LOST, (64.0, updated(0, 1))],
            [(2.0, "failed", False), (63.0, "trained", False), (63.0, "open", False)],
            id="a task with a lost update is trained again",
        ),
        pytest.param(
            [*OUT_OF_STEP, (5.0, joined("c"))],
            [(1.0, "trained", False), (5.0, "open", False)],
            id="a version out of step closes no round",
        ),
        pytest.param(
            [*OUT_OF_STEP, (5.0, updated(1)), (6.0, aggregated(1, parts=((0, 1),)))],
            [(1.0, "trained", False), (5.0, "trained", True)],
            id="the version of the last update closes a round out of step",
        ),
    ],
)
def test_an_attempt_ends_with_its_update(record: list[Dated], told: list[Any]) -> None:
    """Whatever becomes of the update later."""
    assert [end[3:] for end in ends(*record)] == told


def test_disturbances_count_from_the_first_assignment() -> None:
    """As attempts do; one before it has a second below 0."""
    killed = DisturbedLine(who="a", what="is killed")
    tables = folded((4.0, killed), (5.0, assigned(0)), (7.0, killed), (9.0, assigned(1)))
    assert disturbed_seconds(tables) == (-1.0, 2.0)


def used(worker: str, *at_seconds: float) -> ResourcesUsedLine:
    """Half a core at these moments of an attempt."""
    samples = tuple(Sample(at, 0.5, 10, 3, 0.1) for at in at_seconds)
    return ResourcesUsedLine(round=0, shard=0, attempt=0, worker=worker, samples=samples)


def test_samples_of_resources_are_in_the_order_of_time() -> None:
    """Of all attempts of a worker together, counted from the first assignment."""
    lines = (8.0, used("b", 7.0)), (8.5, used("b", 6.0)), (9.0, used("a", 6.5))
    found = resources(folded((5.0, assigned(0)), *lines))
    assert [one.at_seconds for one in found["b"]] == [1.0, 2.0]
    assert found["a"] == [Sample(1.5, 0.5, 10, 3, 0.1)]
    assert resources(Tables()) == {}


def test_a_recorded_experiment_is_read_as_a_study_of_one() -> None:
    """Its result and its attempts; there are no axes."""
    study = read_one(RECORDED)
    (subgrid,) = study.subgrids
    assert (study.name, subgrid.axes, study.done, study.asked) == ("gestures", (), 1, 1)
    assert subgrid.runs[0].result.spans
    assert subgrid.runs[0].has_uneven_data


BEGUN = [(5.0, submitted()), (5.0, joined("w1")), (5.1, joined("w2"))]
AT_WORK = [*BEGUN, (5.2, assigned(0, worker="w1"))]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        pytest.param(
            [
                *AT_WORK,
                (17.5, left("w1", "no heartbeat for 10 s", lost=True)),
                (18.0, left("w2", "told to stop")),
                (20.0, joined("w1")),
            ],
            [
                "w1 was lost after 12.5 s: no heartbeat for 10 s",
                "w2 left after 13.0 s: told to stop",
                "w1 joined after 15.0 s",
            ],
            id="workers leave and come back",
        ),
        pytest.param([*AT_WORK, (9.0, joined("w1"))], [], id="the manager restarted"),
        pytest.param(
            [
                *BEGUN,
                (6.0, DisturbedLine(who="w1", what="is killed and stays away")),
                (6.5, left("w1", "its connection ended", lost=True)),
            ],
            [
                "w1 is killed and stays away on purpose, after 1.0 s",
                "w1 was lost after 1.5 s: its connection ended",
            ],
            id="a disturbance comes before its consequence",
        ),
        pytest.param(
            [*BEGUN, (6.0, OtherPackagesLine(worker="w1", packages=("torch 1, the manager 2",)))],
            ["w1 has torch 1, the manager 2"],
            id="other packages",
        ),
    ],
)
def test_changes_of_workers_have_their_reasons(record: list[Dated], told: list[str]) -> None:
    """Those who were present when work began have no line."""
    assert list(worker_changes(folded(*record))) == told


def test_a_split_has_sizes_and_classes() -> None:
    """And the number of examples that no shard holds."""
    counts = prepared(4, 6, train_samples=12, shard_classes=((4, 0, 0), (0, 1, 5)))
    split = split_of(folded(*dated(submitted(split="class"), counts)))
    assert split is not None
    assert (split.split, split.sizes.tolist(), split.held_out) == ("class", [4, 6], 2)
    assert split.by_class.tolist() == [[4, 0, 0], [0, 1, 5]]
    assert split.unevenness == pytest.approx(1.5)


@pytest.mark.parametrize("lines", [[submitted()], [submitted(), prepared(4, 6)]])
def test_a_record_without_counts_of_classes_has_no_split(lines: list[RecordLine]) -> None:
    """Not prepared yet, or too many classes to be on record."""
    assert split_of(folded(*dated(*lines))) is None


WIDE = NumericClass(torch="2", device="cpu", instruction_set="AVX512")
NARROW = NumericClass(torch="2", device="cpu", instruction_set="AVX2")
CUDA = NumericClass(torch="2", device="cuda", instruction_set="H200")


def now(manager: NumericClass | None, *workers: NumericClass | None) -> Status:
    """The status of a manager and workers with these classes."""
    known: dict[str, Any] = {"address": "a:1", "state": WorkerState.IDLE, "tasks_done": 0}
    several = [
        WorkerStatus(worker=f"w{number}", numeric_class=numeric_class, **known)
        for number, numeric_class in enumerate(workers, 1)
    ]
    return Status(change=1, workers=tuple(several), numeric_class=manager)


@pytest.mark.parametrize(
    "status", [now(WIDE), now(WIDE, WIDE, WIDE), now(None, NARROW, None), now(WIDE, CUDA, CUDA)]
)
def test_one_numeric_class_is_no_mixture(status: Status) -> None:
    """A manager on the processor computes nothing that accelerators do."""
    assert mixture_now(status) == ""


def test_a_mixture_names_its_members() -> None:
    """The manager is one of them: it draws the initial model."""
    assert mixture_now(now(WIDE, NARROW)).splitlines()[1:] == [
        f"  manager: {WIDE}",
        f"  w1: {NARROW}",
    ]
    told = mixture_now(now(WIDE, WIDE, NARROW, NARROW, NARROW, NARROW))
    assert f"manager, w1: {WIDE}" in told
    assert f"w2, w3, w4 and 1 more: {NARROW}" in told


def trained(device: str, drawn_with: str, *classes: str) -> Result:
    """The result of a shard for each class of a worker: PROCESSOR/ACCELERATOR or one."""
    lines: list[RecordLine] = [submitted(len(classes), device=device)]
    lines += [prepared(*[1] * len(classes), numeric_class=drawn_with), joined("idle", "unused")]
    for shard, numeric_class in enumerate(classes):
        processor, _, accelerator = numeric_class.rpartition("/")
        lines += [joined(f"w{shard}", accelerator, processor_class=processor)]
        lines += [updated(shard, worker=f"w{shard}")]
    return Result.from_record(dated(*lines))


@pytest.mark.parametrize(
    ("device", "drawn_with", "classes", "members"),
    [
        ("cpu", "wide", ["wide", "wide"], {"wide": ("manager", "w0", "w1")}),
        ("cpu", "wide", ["narrow", "wide"], {"wide": ("manager", "w1"), "narrow": ("w0",)}),
        ("cuda", "wide", ["gpu", "gpu"], {"gpu": ("w0", "w1")}),
        ("cpu", "", ["", ""], {}),
        ("cpu", "wide", ["wide/gpu"], {"wide": ("manager", "w0")}),
        ("auto", "wide", ["wide/gpu", "wide"], {"wide": ("w1",), "gpu": ("w0",)}),
    ],
)
def test_a_result_has_the_numeric_classes_of_its_updates(
    device: str, drawn_with: str, classes: list[str], members: dict[str, tuple[str, ...]]
) -> None:
    """A worker that trained nothing changes no byte."""
    result = trained(device, drawn_with, *classes)
    assert result.numeric_classes == members
    told = any("narrow" in str(part) for part in result_table(result).renderables)  # type: ignore[union-attr]
    assert bool(mixture_of(result.numeric_classes)) is (len(members) > 1)
    assert told is ("narrow" in members)


@pytest.mark.parametrize(
    ("spec", "workers", "rehearsed", "verified"),
    [
        pytest.param({"task": "lab:Lab"}, [], False, False, id="nothing to compare with"),
        pytest.param({"task": "lab:Lab"}, [], True, True, id="the rehearsal agrees"),
        pytest.param({"model": "lab:net"}, [("here", "a")], False, True, id="a worker agrees"),
        pytest.param({"task": "lab:Lab"}, [("here", "")], False, False, id="it did not repeat"),
        pytest.param({"task": "lab:Lab"}, [("gpu", "a")], False, False, id="another class"),
        pytest.param({"task": "lab:Lab"}, [("gpu", "b")] * 2, False, True, id="two of another"),
        pytest.param({"task": "lab:Lab"}, [("here", "b")], True, False, id="a worker disagrees"),
        pytest.param({"model": "mlp"}, [("here", "")], False, None, id="no code of a user's"),
    ],
)
def test_a_result_is_verified_once_two_processes_of_a_class_agree(
    spec: dict[str, Any],
    workers: list[tuple[str, str]],
    rehearsed: bool,  # noqa: FBT001 - a case
    verified: bool | None,  # noqa: FBT001 - a case
) -> None:
    """Python, the summary, the live page and a report say so in one line, or say nothing."""
    steps = prepared(*[1] * len(workers), trial="a", tried_with="here", rehearsed=rehearsed)
    record = dated(
        submitted(len(workers), **{"device": "auto", **spec}),
        *(joined(f"w{number}", numeric_class) for number, (numeric_class, _) in enumerate(workers)),
        steps,
        *(updated(n, worker=f"w{n}", trial=checksum) for n, (_, checksum) in enumerate(workers)),
    )
    result, model = Result.from_record(record), RecordTables()
    assert result.verified is verified
    for at, line in record:
        model.take({"at": at, **to_fields(line)})
    told = [
        "not verified" in repr(result),
        any(NOT_VERIFIED in str(part) for part in result_table(result).renderables),  # type: ignore[union-attr]
        NOT_VERIFIED in model.about()["warnings"],
        "not verified" in [fact.value for fact in facts_of(result)],
    ]
    assert told == [verified is False] * 4
