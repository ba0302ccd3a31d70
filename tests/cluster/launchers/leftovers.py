"""What stays behind of each launcher, as a table: `python -m tests.cluster.launchers.leftovers`.

A row for each launcher and a column for each way to end; `-k "local or ssh"` makes some rows. A
cell adds up processes, jobs, containers, networks, volumes, files and sockets that were not there
before.
"""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.launchers.test_leftovers import ENDINGS

NOT_TRIED = "–"


class Table:
    """A plugin of pytest that collects what each run left behind."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one run."""
        properties: dict[str, Any] = dict(report.user_properties) if report.when == "call" else {}
        if "left" in properties:
            name, ending, count = properties["left"]
            self.rows[name][ending] = count

    def __str__(self) -> str:
        lines = [["`--on`", *ENDINGS], ["---"] * (1 + len(ENDINGS))]
        for name, counts in self.rows.items():
            lines.append([f"`{name}`", *(str(counts.get(one, NOT_TRIED)) for one in ENDINGS)])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    table = Table()
    test = f"{Path(__file__).with_name('test_leftovers.py')}::test_nothing_stays_behind"
    words = [test, "-q", "-n0", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]]
    status = pytest.main(words, plugins=[table])
    sys.stdout.write(f"\n{table}")
    sys.exit(status)
