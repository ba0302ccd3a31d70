"""What a worker claims is checked against what the manager knows, and harms nobody else."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from downpour.base.errors import DownpourError, Refused
from downpour.base.values import AttemptId, Progress, PublishedFile, Snapshot, Update
from downpour.cluster.manager import observations
from downpour.files.store import layout
from downpour.network.rpc.messages import BlockDigest, Heartbeat, TaskMessage
from tests.cluster.manager.conftest import CALM, FakeWorker, diligent

Claim = Callable[[Update], Update]


CLAIMS: dict[str, Claim] = {
    "update.samples": lambda update: replace(update, samples=update.samples * 1000),
    "update.steps": lambda update: replace(update, steps=update.steps + 1),
    "update.loss": lambda update: replace(update, loss=float("nan")),
    "update.optimizer_state": lambda update: replace(update, optimizer_state=update.file),
}


def test_a_claim_that_contradicts_the_task_is_refused(cluster: Any) -> None:
    """The field is named; told truly, the same update counts."""
    refusals: dict[str, list[str]] = {field: [] for field in CLAIMS}

    def boastful(worker: FakeWorker, task: TaskMessage) -> None:
        update = worker.update(task, worker.publish(task, worker.parameters(task)))
        for field, claim in CLAIMS.items():
            with pytest.raises(DownpourError, match=r"loss|refuse|update") as refusal:
                worker.client.report_update(worker.name, task.id, claim(update))
            refusals[field].append(str(refusal.value))
        worker.client.report_update(worker.name, task.id, update)

    cluster.join("one", boastful)
    cluster.result_of(cluster.submit())
    for field, told in refusals.items():
        assert told
        assert all(field.split(".")[1] in refusal for refusal in told)


OLD = "transformers 4.45, the manager 5.23"


def test_no_file_of_others_can_be_reported_away(cluster: Any) -> None:
    """Log, spec, models and other attempts' files are no update and no snapshot."""
    named, taken = set[str](), list[str]()

    def greedy(worker: FakeWorker, task: TaskMessage) -> None:
        late = replace(task.id, round=0, shard=0, attempt=0)
        for path in worker.shared.experiment_path(task.id.experiment).iterdir():
            for attempt in (task.id, late):
                if _task_of(path.name) != (attempt.round, attempt.shard):
                    named.add(path.name.partition("-")[0])
                    taken.extend(claims_taken(worker, task, attempt, path.name))
        diligent(worker, task)

    cluster.join("one", greedy)
    experiment = cluster.submit(epochs=3)
    cluster.result_of(experiment)
    assert named >= {"journal", "spec.toml", "model", "update"}
    assert not taken
    record = cluster.record(experiment)
    cluster.manager.close()
    there = {path.name for path in cluster.shared.experiment_path(experiment).iterdir()}
    assert {"spec.toml", "record.jsonl", "model.safetensors"} < there
    assert any(name.startswith("journal") for name in there)
    assert not [line for line in record if '"saved"' in line]


def claims_taken(worker: FakeWorker, task: TaskMessage, attempt: AttemptId, name: str) -> list[str]:
    """Claim a file for an attempt in every way there is; returns what was not refused."""
    file = PublishedFile(name=name, size_bytes=1, checksum="0" * 32)
    snapshot = Snapshot(file=file, steps_done=1, steps_total=9)
    progress = Progress(
        attempt=attempt, steps_done=1, steps_total=9, elapsed_seconds=1.0, snapshot=snapshot
    )
    worker.client.heartbeat(Heartbeat(worker=worker.name, running=(progress,), system=CALM))
    taken = []
    with suppress(Refused):
        worker.client.report_update(worker.name, attempt, worker.update(task, file))
        taken.append(f"{name} as update of {attempt}")
    with suppress(Refused):
        worker.client.report_hand_over(worker.name, attempt, snapshot)
        taken.append(f"{name} as snapshot of {attempt}")
    return taken


def test_other_packages_of_a_worker_are_logged_once_and_shown(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as it says so; whatever it says stays a line of a limited length."""
    worker = cluster.join("one")
    for differs in ((OLD,), (OLD,), ("no fancy\n\x1b", "x" * 999), ()):
        beat = Heartbeat(worker=worker.name, running=(), system=CALM, differs=differs)
        worker.client.heartbeat(beat)
        (shown,) = worker.client.status("", 0, 0.0).workers
        assert len(shown.differs) == len(differs)
        assert all(line.isprintable() and len(line) <= 200 for line in shown.differs)
    assert caplog.text.count(f"one has {OLD}") == 1
    assert caplog.text.count("one has no fancy") == 1


def test_other_packages_and_what_takes_long_are_on_record_once(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker says so with each heartbeat; whoever reads the results later knows, too."""
    monkeypatch.setattr(observations, "PHASE_SECONDS", 0)

    def differing(worker: FakeWorker, task: TaskMessage) -> None:
        done = Progress(
            attempt=task.id, steps_done=1, steps_total=9, elapsed_seconds=1.0, moved_bytes=9
        )
        for _ in range(3):
            beat = Heartbeat(worker=worker.name, running=(done,), system=CALM, differs=(OLD,))
            worker.client.heartbeat(beat)
        diligent(worker, task)

    cluster.join("one", differing)
    for experiment in (cluster.submit(epochs=2), cluster.submit(epochs=1)):
        cluster.result_of(experiment)
        record = cluster.record(experiment)
        [told] = [line for line in record if '"other-packages"' in line]
        assert OLD in told
        saving, assigned = (
            sum(word in line for line in record) for word in ('"saving"', '"assigned"')
        )
        assert saving == assigned


def test_a_block_that_two_workers_read_differently_is_named_to_the_second(cluster: Any) -> None:
    """And to it alone, whenever it tells so; the record has what was read first."""
    one, two = cluster.join("one"), cluster.join("two")
    experiment = cluster.submit()
    a, b, other = (BlockDigest(name, digit * 32) for name, digit in ("a0", "b1", "a2"))
    why = "a, which one read first"
    for _ in range(2):
        assert one.client.report_blocks("one", experiment, (a,)) == ()
        assert two.client.report_blocks("two", experiment, (b, other)) == (why,)
    assert one.client.report_blocks("one", experiment, (a, b)) == ()
    assert one.client.report_blocks("one", "unknown", (other,)) == ()
    cluster.result_of(experiment)
    told = cluster.facts(experiment, "blocks-read")
    assert [(line["worker"], line["digests"]) for line in told] == [
        ("one", {"a": a.digest}),
        ("two", {"b": b.digest}),
    ]


def _task_of(name: str) -> tuple[int, int] | None:
    parsed = layout.parse_name(name)
    return (parsed.round, parsed.shard) if isinstance(parsed, layout.AttemptName) else None
