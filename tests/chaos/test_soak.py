"""Nothing but the journal grows with the rounds: real processes play five hundred of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recovery.py"

# What may be more after round 500 than after round 100. The journal has a file more every 50
# rounds; updates come and go.
ROOM = {
    "manager_mb": 6.0,
    "worker_mb": 6.0,
    "manager_files_open": 4,
    "worker_files_open": 4,
    "manager_threads": 4,
    "files": 8 + 400 // 50,
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_many_rounds_nothing_is_left_over() -> None:
    """Neither memory nor files of manager, workers and experiment."""
    words = "soak", "--soak-rounds", "500", "--marks", "100", "500", "--json"
    output = subprocess.run([sys.executable, SCRIPT, *words], stdout=subprocess.PIPE, check=True)
    early, late = json.loads(output.stdout)
    assert late["rounds"] - early["rounds"] > 300
    grown = {name: late[name] - early[name] for name in ROOM}
    assert {name: more for name, more in grown.items() if more > ROOM[name]} == {}
    assert late["journal_kb"] > early["journal_kb"]
