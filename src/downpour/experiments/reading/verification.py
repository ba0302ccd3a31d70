"""Says whether two processes have trained the first steps of a user's code to the same bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from downpour.experiments.reading.mixture import MANAGER
from downpour.files.records.record_lines import PreparedLine

NOT_VERIFIED = "not verified: no two processes have trained the first steps to the same bytes"


@dataclass(slots=True)
class Verification:
    """The checksums of the first steps so far, by numeric class, and the processes of each."""

    _found: defaultdict[str, defaultdict[str, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )

    def prepared(self, line: PreparedLine) -> None:
        """Take in the steps of the manager and of its rehearsal."""
        self.updated(MANAGER, line.tried_with, line.trial)
        if line.rehearsed:
            self.updated("rehearsal", line.tried_with, line.trial)

    def updated(self, process: str, its_class: str, checksum: str) -> None:
        """Take in the steps of a process, if it has repeated them."""
        if checksum:
            self._found[its_class][checksum].add(process)

    def of(self, spec: Mapping[str, Any]) -> bool | None:
        """Say whether two processes of one class agree, and none of it disagrees.

        None if the spec trains no code of a user's.
        """
        if not spec.get("task") and ":" not in spec.get("model", ""):
            return None
        agree = any(len(who) > 1 for sums in self._found.values() for who in sums.values())
        return agree and all(len(sums) == 1 for sums in self._found.values())
