"""The time of a submission; an experiment's ID holds it, because a record has its own clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_STAMP = re.compile(r"-(\d{8}-\d{6})-[0-9a-f]+")


def submission_seconds(experiment: str) -> float:
    """Return when a user submitted an experiment, in seconds since 1970; 0 if its ID is short."""
    stamp = _STAMP.search(experiment)
    if stamp is None:
        return 0.0
    return datetime.strptime(stamp[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
