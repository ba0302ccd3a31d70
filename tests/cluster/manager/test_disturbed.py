"""What someone does to the processes of an experiment on purpose."""

from __future__ import annotations

from typing import Any

from downpour.record.record import parse_lines
from downpour.record.record_lines import AssignedLine, DisturbedLine


def test_what_is_disturbed_on_purpose_is_on_record(cluster: Any) -> None:
    """Before what follows from it; those who watch are told as well."""
    experiment = cluster.submit(epochs=1)
    cluster.client.disturbed(experiment, "one", "is killed")
    told = cluster.client.status(experiment).decisions
    assert [said.partition(", ")[2] for said in told] == ["on purpose: one is killed"]
    cluster.join("one")
    cluster.end_of(experiment)
    lines = [line for _, line in parse_lines(cluster.record(experiment))]
    first = next(line for line in lines if isinstance(line, AssignedLine))
    disturbed = DisturbedLine(who="one", what="is killed")
    assert lines.index(disturbed) < lines.index(first)
