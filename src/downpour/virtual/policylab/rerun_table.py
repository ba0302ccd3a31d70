"""Turns reruns of a recorded run into rows and a table: other settings, and their durations.

A simulation leaves out what it does not know. So the remarks say how far its result for the run's
own tactic is off, which shows how far to trust the others. We don't scale the times by that error:
on runs whose true times we knew, scaling made most of them worse.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from downpour.virtual.policylab.recorded import RecordedRun
from downpour.virtual.policylab.rerun import Rerun

_DOUBTFUL = 0.1


def rerun_rows(run: RecordedRun, reruns: Sequence[Rerun]) -> list[dict[str, Any]]:
    """Return a row for each rerun, fastest first; the first rerun has the run's own tactic.

    That row has the time that the run really took. `saves` is the share of this time that another
    tactic saves; it is negative if that tactic takes longer.
    """
    rows = []
    for one in reruns:
        used = one is reruns[0]
        seconds = run.seconds if used else one.seconds
        rows.append(
            {
                "policy": one.tactic.policy,
                "mode": one.tactic.mode,
                "overlap": one.tactic.overlap,
                "used": used,
                "seconds": round(seconds, 3),
                "saves": round(1.0 - seconds / run.seconds, 4),
                "examples": round(one.counted, 4),
            }
        )
    return sorted(rows, key=lambda row: (row["seconds"], not row["used"]))


def rerun_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def rerun_table(run: RecordedRun, rows: Sequence[dict[str, Any]]) -> Table:
    """Make the table that people read."""
    title = (
        f"{run.experiment}: {run.rounds} rounds of {run.spec.shards} shards "
        f"on {len(run.workers)} workers"
    )
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for header in ("policy", "mode"):
        table.add_column(header)
    for header in ("would have\ntaken, s", "saves\n%", "examples\n%"):
        table.add_column(header, justify="right")
    for row in rows:
        overlap = f", overlap {row['overlap']}" if row["overlap"] else ""
        table.add_row(
            row["policy"],
            row["mode"] + overlap,
            f"{row['seconds']:,.1f}",
            "used" if row["used"] else f"{100 * row['saves']:.1f}",
            f"{100 * row['examples']:.0f}",
            style="bold" if row["used"] else "",
        )
    return table


def rerun_remarks(run: RecordedRun, own: Rerun) -> list[str]:
    """Say how far the simulation can be trusted, a sentence each."""
    error = own.seconds / run.seconds - 1.0
    took = (
        f"The run took {run.seconds:.1f} s. Simulated with its own settings, it takes "
        f"{own.seconds:.1f} s ({error:+.1%}); smaller differences in the table mean nothing."
    )
    compared = (
        "Each worker is as fast as it was at that moment of the run, and after the run's "
        "end as fast as in its last task. The table only compares times: another mode, "
        "or fewer examples, trains another model."
    )
    remarks = [took, compared]
    if abs(error) > _DOUBTFUL:
        remarks.append("The simulation is far from the real run, so take the table only as a hint.")
    if run.failed:
        remarks.append(
            f"{run.failed} attempts failed; the simulation does not include failed tasks."
        )
    return remarks
