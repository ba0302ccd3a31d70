"""Run the benchmarks one after the other, each in a process of its own, and keep their figures.

Without names all run, except `finished`, which makes 100,000 folders, `compared`, which installs
what it compares with, `lab`, `large_data` and `storm`, which need root, `last_batch`, which needs
MNIST, and `stragglers`, `accuracy`, `more_workers`, `defaults` and `fewer_bytes`, which train for
half an hour and longer, and `slow_machine` and `contribution`, which simulate for some minutes.
Close everything else first: most figures are times, and even ratios vary on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from common import Row, show

USUAL = (
    "aggregation",
    "publishing",
    "coordination",
    "overlap",
    "objects",
    "pushes",
    "trust",
    "training_speed",
    "devices",
    "inside",
    "scheduler_speed",
    "startup",
    "load",
    "dashboard",
    "safety",
    "sampling",
    "recovery",
    "growth",
    "blocks",
)
LONG = (
    "finished",
    "compared",
    "lab",
    "stragglers",
    "accuracy",
    "more_workers",
    "defaults",
    "fewer_bytes",
    "last_batch",
    "slow_machine",
    "real_work",
    "large_data",
    "contribution",
    "nonsense",
    "storm",
    "wrong_machines",
)
ALL = (*USUAL, *LONG)


def run(name: str) -> list[Row] | None:
    """Run one benchmark; returns its rows, or None where it failed and has said why."""
    script = Path(__file__).with_name(f"{name}.py")
    done = subprocess.run([sys.executable, script, "--json"], stdout=subprocess.PIPE, check=False)
    rows: list[Row] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return rows


def machine() -> dict[str, object]:
    """Say where the figures come from, and how busy it was."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def main() -> int:
    """Run what was asked for, print its tables, write its figures; 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ALL):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    found: dict[str, list[Row] | None] = {}
    about = machine()
    for name in options.names or USUAL:
        began = time.monotonic()
        found[name] = rows = run(name)
        print(f"\n{name} ({time.monotonic() - began:.0f} s)" + ("" if rows else ": failed"))
        show(rows or [], as_json=False)
        if options.json:
            options.json.write_text(json.dumps({"machine": about, "benchmarks": found}, indent=1))
    return int(None in found.values())


if __name__ == "__main__":
    sys.exit(main())
