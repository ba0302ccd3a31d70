"""The checker of histories: on journals made by hand, and on a real one that was doctored."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.chaos.history import done_in_vain, violations

SHARDS, EPOCHS = 2, 3
SPEC = {"mode": "sync", "shards": SHARDS, "epochs": EPOCHS, "overlap": 0, "keep_models": 3}
MODEL = b"the final model"

Body = dict[str, Any]
Doctor = Callable[[list[Body]], list[Body]]


def named(name: str) -> Body:
    """A published file."""
    return {"name": name, "checksum": xxhash.xxh3_128_hexdigest(MODEL)}


def attempt(kind: str, round_: int, shard: int, **about: Any) -> Body:
    """An entry about the first attempt at a task."""
    return {
        "kind": kind,
        "entry": {"attempt": {"round": round_, "shard": shard, "attempt": 0}, **about},
    }


def version(number: int, parts: Sequence[tuple[int, int]] = (), name: str = "") -> Body:
    """A version, which is made of the round before."""
    model = named(name or f"model-{number:06d}-aa.safetensors")
    about = {"round": number - 1, "model": model, "parts": list(parts), "own": [], "outer": None}
    return {"kind": "aggregated", "entry": about}


def whole_run(mode: str = "sync") -> list[Body]:
    """All entries of an undisturbed run."""
    spec = {**SPEC, "mode": mode}
    bodies: list[Body] = [{"kind": "submitted", "entry": {"spec": spec}}]
    prepared = {"model": named("model-000000-aa.safetensors"), "frozen": None}
    bodies.append({"kind": "prepared", "entry": prepared})
    for round_ in range(EPOCHS):
        base = named(f"model-{round_:06d}-aa.safetensors")
        for shard in range(SHARDS):
            bodies.append(attempt("assigned", round_, shard, model=base))
            file = named(f"update-{round_}-{shard}")
            update = {"file": file, "optimizer_state": None}
            bodies.append(attempt("accepted", round_, shard, update=update))
        parts = [] if mode == "sync" else [(round_, shard) for shard in range(SHARDS)]
        bodies.append(version(round_ + 1, parts))
    ending = {"ending": "finished", "reason": "", "model": named("model.safetensors")}
    return [*bodies, {"kind": "concluded", "entry": ending}]


def written(shared: Path, segments: dict[tuple[int, int], tuple[int, list[Body]]]) -> str:
    """Write a shared directory of segments, each with the number of its first line."""
    folder = shared / "experiments" / "one"
    folder.mkdir(parents=True)
    (shared / "terms").mkdir()
    for (term, number), (first, bodies) in segments.items():
        (shared / "terms" / f"{term:06d}").touch()
        lines = [{"number": n, "at": float(n), **one} for n, one in enumerate(bodies, first)]
        texts = [json.dumps(line).encode() for line in lines]
        content = b"".join(xxhash.xxh3_64_hexdigest(t).encode() + b" " + t + b"\n" for t in texts)
        (folder / f"journal-{term:06d}-{number:04d}.jsonl").write_bytes(content)
    (folder / "model.safetensors").write_bytes(MODEL)
    return "one"


def found(shared: Path, bodies: list[Body]) -> list[str]:
    """What is wrong with a journal of one segment."""
    return violations(shared, written(shared, {(1, 1): (1, bodies)}))


@pytest.mark.parametrize("mode", ["sync", "downpour"])
def test_an_undisturbed_run_is_as_it_must_be(mode: str, tmp_path: Path) -> None:
    """And nothing was done in vain."""
    assert found(tmp_path, whole_run(mode)) == []
    assert done_in_vain(tmp_path / "experiments" / "one") == (SHARDS * EPOCHS, 0)


def index_of(bodies: list[Body], kind: str, round_: int) -> int:
    """Where the first entry of a kind and a round is."""
    about = ((one["kind"], one["entry"]) for one in bodies)
    return next(
        at
        for at, (found_kind, entry) in enumerate(about)
        if found_kind == kind and entry.get("attempt", entry).get("round") == round_
    )


def repeated(kind: str) -> Doctor:
    """Repeat the first entry of a kind of round 1."""

    def doctor(bodies: list[Body]) -> list[Body]:
        at = index_of(bodies, kind, 1)
        return [*bodies[: at + 1], bodies[at], *bodies[at + 1 :]]

    return doctor


def without(kind: str) -> Doctor:
    """Leave the first entry of a kind of round 1 out."""

    def doctor(bodies: list[Body]) -> list[Body]:
        at = index_of(bodies, kind, 1)
        return bodies[:at] + bodies[at + 1 :]

    return doctor


def from_older(bodies: list[Body]) -> list[Body]:
    """Let a task of round 1 begin from version 0."""
    bodies[index_of(bodies, "assigned", 1)]["entry"]["model"] = named("model-000000-aa.safetensors")
    return bodies


def from_nowhere(bodies: list[Body]) -> list[Body]:
    """Let a task of round 1 begin from a version of another leader."""
    bodies[index_of(bodies, "assigned", 1)]["entry"]["model"] = named("model-000001-bb.safetensors")
    return bodies


@pytest.mark.parametrize(
    ("mode", "doctor", "reason"),
    [
        ("sync", repeated("accepted"), "the update of round 1 shard 0 was taken twice"),
        ("sync", repeated("aggregated"), "version 2 was published twice, in terms 1 and 1"),
        ("sync", without("accepted"), "version 2 is without round 1 shard 0"),
        ("sync", without("aggregated"), "version 3 follows version 1"),
        ("sync", from_older, "round 1 shard 0 began from version 0 instead of 1"),
        ("sync", from_nowhere, "round 1 shard 0 began from model-000001-bb.safetensors"),
        ("sync", lambda bodies: bodies[:-1], "it ended 0 times"),
        ("downpour", repeated("aggregated"), "version 2 counts round 1 shard 0 again"),
        ("downpour", without("accepted"), "version 2 counts round 1 shard 0, of which no update"),
        ("downpour", without("aggregated"), "the update of round 1 shard 1 is lost"),
        ("downpour", without("assigned"), "whose attempt nobody assigned"),
    ],
)
def test_the_checker_finds_each_doctored_entry(
    mode: str, doctor: Doctor, reason: str, tmp_path: Path
) -> None:
    """One reason at least says what it is."""
    assert any(reason in line for line in found(tmp_path, doctor(whole_run(mode))))


def test_files_are_explained_by_the_journal(tmp_path: Path) -> None:
    """Others are left over; and the final model is the one that was promised."""
    experiment = written(tmp_path, {(1, 1): (1, whole_run())})
    folder = tmp_path / "experiments" / experiment
    (folder / "update-000001-000000-000-aa.safetensors").touch()
    (folder / "model.safetensors").write_bytes(b"another")
    left, promised = violations(tmp_path, experiment)
    assert left.startswith("update-000001-000000-000-aa.safetensors is left over")
    assert promised.startswith("model.safetensors is ")


def taken_over(at: int) -> dict[tuple[int, int], tuple[int, list[Body]]]:
    """A run that another manager takes up before line `at`, beside whom the first one goes on."""
    bodies = whole_run()
    taking: Body = {"kind": "taken-up", "entry": {"record": []}}
    return {(1, 1): (1, bodies), (2, 1): (at, [taking, *bodies[at - 1 :]])}


def test_a_takeover_is_as_it_must_be_if_there_was_a_reason(tmp_path: Path) -> None:
    """What the first leader was writing when the second began is void."""
    bodies = whole_run()
    at = index_of(bodies, "aggregated", 2) + 1
    experiment = written(tmp_path, taken_over(at))
    assert violations(tmp_path, experiment, terms_max=2) == []
    [reason] = violations(tmp_path, experiment)
    assert reason == "2 managers led, though only 1 can have had a reason to"


def test_a_leader_that_goes_on_beside_its_successor_is_found(tmp_path: Path) -> None:
    """It published two versions, or decided for longer than it may."""
    experiment = written(tmp_path, taken_over(4))
    several = violations(tmp_path, experiment, terms_max=2)
    assert "term 1 went on beside its successor: it published versions [1, 2, 3]" in several
    assert any("decided beside its successor" in reason for reason in several)


def test_a_line_that_is_missing_is_found(tmp_path: Path) -> None:
    """A successor that began from less than was written leaves a gap."""
    bodies = whole_run()
    experiment = written(tmp_path, {(1, 1): (1, bodies[:5]), (1, 2): (7, bodies[6:])})
    assert "entry 6 of the journal is missing" in violations(tmp_path, experiment)
