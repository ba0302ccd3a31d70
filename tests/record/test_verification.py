"""A result says that it is not verified until two processes have trained the same first steps."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.record.record_lines import (
    PreparedLine,
    RecordLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
    to_fields,
)
from downpour.record.result import Result
from downpour.record.result_parts import NOT_VERIFIED
from downpour.show.dashboard.model import RecordTables
from downpour.show.tables.terminal_tables import result_table
from tests.specs import stored_spec

CASES = [
    pytest.param({"task": "lab:Lab"}, [], False, False, id="nobody has compared"),
    pytest.param({"task": "lab:Lab"}, [], True, True, id="the rehearsal agrees"),
    pytest.param({"model": "lab:net"}, [("here", "a")], False, True, id="a worker agrees"),
    pytest.param({"task": "lab:Lab"}, [("here", "")], False, False, id="it did not repeat"),
    pytest.param({"task": "lab:Lab"}, [("gpu", "a")], False, False, id="another class"),
    pytest.param({"task": "lab:Lab"}, [("gpu", "b")] * 2, False, True, id="two of another class"),
    pytest.param({"task": "lab:Lab"}, [("here", "b")], True, False, id="a worker disagrees"),
    pytest.param({"model": "mlp"}, [("here", "")], False, None, id="no code of a user's"),
]


def record(
    spec: dict[str, Any], workers: list[tuple[str, str]], *, rehearsed: bool
) -> list[tuple[float, RecordLine]]:
    """Return a record with the class and the checksum of each worker; the manager's are given."""
    lines: list[RecordLine] = [
        SubmittedLine(
            experiment="e", name="e", spec=stored_spec(**spec), version="0", shards=len(workers)
        ),
        *(
            WorkerJoinedLine(worker=f"w{number}", address="a:1", numeric_class=its)
            for number, (its, _) in enumerate(workers)
        ),
        PreparedLine(
            train_samples=1,
            test_samples=1,
            classes=2,
            shard_samples=(1,) * len(workers),
            prepare_seconds=0.0,
            split_seconds=0.0,
            bytes=1,
            parameters=1,
            trial="a",
            tried_with="here",
            rehearsed=rehearsed,
            numeric_class="",
            dataset="",
            checksum="",
        ),
    ]
    numbers: dict[str, Any] = dict.fromkeys(
        ("load_seconds", "train_seconds", "publish_seconds", "completion_seconds", "loss"), 1.0
    )
    counts: dict[str, Any] = {"round": 0, "attempt": 0, "samples": 1, "steps": 1, "bytes": 1}
    for shard, (_, checksum) in enumerate(workers):
        made = UpdatedLine(
            shard=shard, worker=f"w{shard}", trial=checksum, **counts, **numbers, checksum=""
        )
        lines.append(made)
    return [(float(at), line) for at, line in enumerate(lines)]


@pytest.mark.parametrize(("spec", "workers", "rehearsed", "verified"), CASES)
def test_a_result_is_verified_once_two_processes_of_a_class_agree(
    spec: dict[str, Any],
    workers: list[tuple[str, str]],
    rehearsed: bool,  # noqa: FBT001 - a case
    verified: bool | None,  # noqa: FBT001 - a case
) -> None:
    """Python, the summary, the report and the live page say so in one line, or say nothing."""
    lines = record({"device": "auto", **spec}, workers, rehearsed=rehearsed)
    result = Result.from_record(lines)
    assert result.verified is verified
    told = verified is False
    assert ("not verified" in repr(result)) is told
    assert any(NOT_VERIFIED in str(part) for part in result_table(result).renderables) is told  # type: ignore[union-attr]
    model = RecordTables()
    for at, line in lines:
        model.take({"at": at, **to_fields(line)})
    assert (NOT_VERIFIED in model.about()["warnings"]) is told
