"""What stays behind of each launcher, as a table: `python -m tests.launchers.leftovers`.

A row for each launcher and each way to end; `-k "local or ssh"` makes some of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["DOWNPOUR_TESTS_TABLE"] = "1"
    kinds = ("processes", "jobs", "containers", "networks", "volumes", "files", "sockets")
    head = f"| `--on` | ended by | {' | '.join(kinds)} |\n"
    sys.stdout.write(f"{head}{'|---' * 9}|\n")
    words = ["-q", "-s", "-n0", "-rs", "-p", "no:cacheprovider"]
    sys.exit(
        pytest.main([str(Path(__file__).with_name("test_leftovers.py")), *words, *sys.argv[1:]])
    )
