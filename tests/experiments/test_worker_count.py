"""Where nobody says how many workers there are, spec and machine do, and a line tells why."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.base.names import Devices
from downpour.core.spec import Spec
from downpour.experiments import surroundings
from downpour.experiments.surroundings import explained, workers_for
from downpour.learning import accelerators, devices


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "usable_cores", lambda: 4)


@pytest.mark.parametrize(
    ("fields", "workers", "why"),
    [
        ({}, "4 workers", "for 4 cores"),
        ({"shards": 3}, "3 workers", "one a shard"),
        ({"shards": 4}, "4 workers", "one a shard"),
        ({"shards": 10}, "4 workers", "for 4 cores"),
        ({"shards": 1}, "1 worker", "one a shard"),
        ({"threads": 2}, "2 workers", "for 4 cores"),
        ({"threads": 9}, "1 worker", "for 4 cores"),
        ({"inside": {"processes": 4}}, "1 worker", "for 4 cores"),
        ({"shards": 2, "standbys": 1}, "3 workers", "one a shard, 1 of them on standby"),
    ],
)
def test_this_machines_cores_bound_the_workers(
    fields: dict[str, Any], workers: str, why: str
) -> None:
    """One a shard, while each has the cores that it trains with."""
    spec = Spec.make(fields)
    assert workers_for(spec) == int(workers.split(maxsplit=1)[0])
    assert explained(spec, is_here=True) == f"{workers}, {why}; --workers takes another number"


@pytest.mark.parametrize(
    ("fields", "workers", "why"),
    [
        ({}, "2 workers", "for 2 accelerators"),
        ({"device": "cuda"}, "2 workers", "for 2 accelerators"),
        ({"device": "cuda:1"}, "1 worker", "for one accelerator"),
        ({"shards": 1}, "1 worker", "one a shard"),
        ({"device": "cpu"}, "4 workers", "for 4 cores"),
        ({"inside": {"processes": 2}}, "2 workers", "for 4 cores"),
    ],
)
def test_this_machines_accelerators_have_a_worker_each(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], workers: str, why: str
) -> None:
    """As many as serve the spec; processes that share a batch need cores."""
    monkeypatch.setattr(devices, "_may_have_any", lambda *_: True)
    monkeypatch.setattr(accelerators, "devices_here", lambda: Devices({"cuda": 2}))
    spec = Spec.make(fields)
    assert workers_for(spec) == int(workers.split(maxsplit=1)[0])
    assert explained(spec, is_here=True) == f"{workers}, {why}; --workers takes another number"


@pytest.mark.parametrize(
    ("shards", "workers", "why"),
    [(None, 4, "the default"), (3, 3, "one a shard"), (10, 4, "the default")],
)
def test_elsewhere_there_are_a_few(
    monkeypatch: pytest.MonkeyPatch, shards: int | None, workers: int, why: str
) -> None:
    """This machine's cores say nothing about others, and nobody wants ten jobs unasked."""
    monkeypatch.setattr(surroundings, "usable_cores", lambda: 1)
    spec = Spec(shards=shards)
    assert workers_for(spec, is_here=False) == workers
    assert explained(spec, is_here=False).startswith(f"{workers} workers, {why};")


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_what_is_no_number_of_workers_is_refused(workers: Any) -> None:
    """The line names the field and what it accepts."""
    with pytest.raises(SpecError, match=r"workers = .*: must be a whole number, at least 1"):
        workers_for(Spec(), workers)
    assert workers_for(Spec(), 9) == 9
