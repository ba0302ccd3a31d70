"""Who computes how is told where not all compute alike, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.states import WorkerState
from downpour.base.values import NumericClass
from downpour.network.rpc.messages import Status, WorkerStatus
from downpour.record.record_lines import (
    PreparedLine,
    RecordLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
)
from downpour.record.result import Result
from downpour.record.result_parts import mixture_now, mixture_of
from downpour.show.tables.terminal_tables import result_table
from tests.specs import stored_spec

WIDE = NumericClass(torch="2", device="cpu", instruction_set="AVX512")
NARROW = NumericClass(torch="2", device="cpu", instruction_set="AVX2")
CUDA = NumericClass(torch="2", device="cuda", instruction_set="H200")


def now(own: NumericClass | None, *others: NumericClass | None) -> Status:
    """Return a status with a manager and workers of these classes."""
    workers = tuple(
        WorkerStatus(
            worker=f"w{number}",
            address="a:1",
            state=WorkerState.IDLE,
            tasks_done=0,
            numeric_class=its,
        )
        for number, its in enumerate(others, 1)
    )
    return Status(change=1, workers=workers, numeric_class=own)


@pytest.mark.parametrize(
    "status",
    [now(WIDE), now(WIDE, WIDE, WIDE), now(None, NARROW, None), now(WIDE, CUDA, CUDA)],
)
def test_nothing_is_said_of_those_who_compute_alike(status: Status) -> None:
    """A manager on the processor computes nothing that accelerators do."""
    assert mixture_now(status) == ""


def test_a_mixture_is_told_with_its_members() -> None:
    """The manager is one of them: it draws the initial model."""
    assert mixture_now(now(WIDE, NARROW)).splitlines()[1:] == [
        f"  manager: {WIDE}",
        f"  w1: {NARROW}",
    ]
    told = mixture_now(now(WIDE, WIDE, NARROW, NARROW, NARROW, NARROW))
    assert f"manager, w1: {WIDE}" in told
    assert f"w2, w3, w4 and 1 more: {NARROW}" in told


def record(device: str, drawn_with: str, *trained_with: str) -> list[tuple[float, RecordLine]]:
    """Return the record of one round, a shard for each class: PROCESSOR/ACCELERATOR or one."""
    told: list[RecordLine] = [
        SubmittedLine(
            experiment="e",
            name="e",
            spec=stored_spec(device=device),
            version="0",
            shards=len(trained_with),
        ),
        PreparedLine(
            train_samples=1,
            test_samples=1,
            classes=2,
            shard_samples=(1,) * len(trained_with),
            prepare_seconds=0.0,
            split_seconds=0.0,
            bytes=1,
            parameters=1,
            numeric_class=drawn_with,
            dataset="",
            checksum="",
        ),
        WorkerJoinedLine(worker="idle", address="a:1", numeric_class="never used"),
    ]
    for shard, its in enumerate(trained_with):
        processor, _, accelerator = its.rpartition("/")
        told.append(
            WorkerJoinedLine(
                worker=f"w{shard}",
                address="a:1",
                numeric_class=accelerator,
                processor_class=processor,
            )
        )
        told.append(_update(shard))
    return list(enumerate(told))


def _update(shard: int) -> UpdatedLine:
    numbers: dict[str, Any] = dict.fromkeys(
        ("load_seconds", "train_seconds", "publish_seconds", "completion_seconds", "loss"), 1.0
    )
    counts: dict[str, Any] = {"round": 0, "attempt": 0, "samples": 1, "steps": 1, "bytes": 1}
    return UpdatedLine(shard=shard, worker=f"w{shard}", **counts, **numbers, checksum="")


def test_results_tell_in_which_classes_a_model_was_made() -> None:
    """Of those whose updates counted; a worker that trained nothing changes no byte."""
    alike = Result.from_record(record("cpu", "wide", "wide", "wide"))
    assert alike.numeric_classes == {"wide": ("manager", "w0", "w1")}
    assert mixture_of(alike.numeric_classes) == ""
    mixed = Result.from_record(record("cpu", "wide", "narrow", "wide"))
    assert mixed.numeric_classes == {"wide": ("manager", "w1"), "narrow": ("w0",)}
    on_cuda = Result.from_record(record("cuda", "wide", "gpu", "gpu"))
    assert on_cuda.numeric_classes == {"gpu": ("w0", "w1")}
    assert Result.from_record(record("cpu", "", "", "")).numeric_classes == {}
    assert Result.from_record(record("cpu", "wide", "wide/gpu")).numeric_classes == {
        "wide": ("manager", "w0")
    }
    both = Result.from_record(record("auto", "wide", "wide/gpu", "wide"))
    assert both.numeric_classes == {"wide": ("w1",), "gpu": ("w0",)}
    assert any("narrow" in str(part) for part in result_table(mixed).renderables)  # type: ignore[union-attr]
