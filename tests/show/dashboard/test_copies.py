"""A page of an object store: it follows copies of the journals that a manager puts there."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.experiments.page_server import place
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.test_mirror import DROPPED, begun
from tests.show.dashboard.served import served


def test_a_page_of_a_bucket_follows_what_the_manager_puts_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a folder that both see; experiments that come later are listed as well."""
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.0)
    cloud = Cloud(monkeypatch, tmp_path)
    manager = cloud.on("manager", create=True)
    with served(URL) as page:
        assert page.ask("/api/experiments").json["experiments"] == []
        journal = begun(manager)
        (row,) = page.ask("/api/experiments").json["experiments"]
        assert (row["id"], row["state"]) == ("one", "preparing")
        with page.events("one") as events:
            assert next(events)[1]["seq"] == 1
            journal.append(2, 1.0, DROPPED)
            journal.commit()
            name, frame = next(events)
            assert (name, frame["seq"]) == ("frame", 2)
            assert frame["decisions"][0][2:4] == ["drop", "close round 1 without shards 1: late"]
