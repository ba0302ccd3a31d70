"""Downpour beside other systems on the hosts of the lab, behind slow links.

All train LeNet-5 on 10,000 images of MNIST, one process a host, until 2,000 test images are
recognized as well as wanted, or with `--whole` to the end of all epochs. A training example takes
2 ms on every host, most of it waiting, so that the hosts do not compete for the cores of this
machine (`padded.py`). Every system looks at the accuracy after each 10,000 examples.

`target_seconds` is from the command to that accuracy, `first_batch_seconds` to the first step,
`end_seconds` to the end of all epochs. `sent_mb` is what all hosts have sent by then, the store of
Downpour's folder included; every byte that one sends another one receives. `store_in_mb` and
`store_out_mb` are the store's part of it. `checksum` names the bytes of the trained network.

How each system is started is in `peers/lab_starts.py`, and what may disturb it in
`peers/lab_faults.py`. `downpour` has its defaults; `downpour-few-bytes` has the settings for slow
networks, and `downpour-cluster` a second manager in reserve. A run has a lab of its own. Systems
take turns in an order that is shuffled for each repetition.

Needs root, and MNIST in the folder DOWNPOUR_DATA; see docs/results/lab-compared.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from common import Row, command_line, keep_run, kept_runs, show
from peers.lab_faults import DISTURBANCES
from peers.lab_shown import draw, markdown
from peers.lab_starts import SYSTEMS
from peers.lab_training import Trial, train


def medians(runs: Sequence[Row]) -> Row:
    """Return the median of each column, of the runs that have it; the load is the highest."""
    row: Row = {}
    for column in dict.fromkeys(name for run in runs for name in run):
        found = [run.get(column) for run in runs]
        values = [value for value in found if isinstance(value, float | int)]
        words = sorted({value for value in found if isinstance(value, str)})
        some = max(values) if column == "load" else statistics.median(values) if values else "never"
        row[column] = " ".join(words) if words else some
    return row


def trials(options: argparse.Namespace) -> Iterator[list[Trial]]:
    """Yield the systems that are compared with each other, one list a row of the table."""
    asked = itertools.product(options.profiles, options.hosts, options.disturb)
    for profile, hosts, disturbance in asked:
        yield [
            Trial(
                system=system,
                profile=profile,
                hosts=hosts,
                epochs=options.epochs,
                examples=options.examples,
                target=options.target,
                whole=options.whole,
                patience_seconds=options.patience_seconds,
                example_seconds=options.example_seconds,
                disturbance=disturbance,
            )
            for system in options.peers
        ]


def measure(compared: Sequence[Trial], repetitions: int, keep: Path | None) -> list[Row]:
    """Let systems take turns, each of which has its own seed; returns a row for each system."""
    runs: dict[str, list[Row]] = {trial.system: [] for trial in compared}
    for turn in range(repetitions):
        for trial in random.Random(turn).sample(compared, len(compared)):
            try:
                row = train(replace(trial, seed=turn))
            except LookupError as error:  # it cannot be installed
                row = {"said": str(error)}
            where = f"{trial.profile}, {trial.hosts} hosts, {trial.disturbance}, {trial.system}"
            print(f"{where}: turn {turn + 1}: {json.dumps(row)}", file=sys.stderr, flush=True)
            said = row.pop("said", None)
            keep_run(keep, {**_where(trial), "turn": turn, **row, "said": said})
            runs[trial.system].append(row)
    return [{**_where(trial), **medians(runs[trial.system])} for trial in compared]


def _where(trial: Trial) -> Row:
    where = {"profile": trial.profile, "hosts": trial.hosts}
    return {**where, "disturbance": trial.disturbance, "system": trial.system}


def _parser(profiles: Sequence[str]) -> argparse.ArgumentParser:
    parser = command_line(__doc__)
    parser.add_argument("--profiles", nargs="+", choices=profiles, default=list(profiles))
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--peers", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--disturb", nargs="+", choices=DISTURBANCES, default=["none"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.97)
    parser.add_argument("--whole", action="store_true", help="train all epochs")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--example-seconds", type=float, default=0.002)
    parser.add_argument("--patience-seconds", type=float, default=600.0)
    parser.add_argument("--keep", type=Path, help="append each run to this file, as JSON lines")
    parser.add_argument(
        "--figure", type=Path, help="draw the kept runs of these --hosts as an SVG, and run nothing"
    )
    parser.add_argument("--table", action="store_true", help="only show the kept runs, as Markdown")
    return parser


def main() -> int:
    """Run the trials that the options name, and show a row for each."""
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.lab.failing import NoLab
    from tests.lab.links import PROFILES

    parser = _parser(list(PROFILES))
    options = parser.parse_args()
    if options.figure is not None or options.table:
        if options.figure is not None:
            of_those = [run for run in kept_runs(options.keep) if run["hosts"] in options.hosts]
            draw(of_those, options.figure)
        if options.table:
            print(markdown(kept_runs(options.keep)))
        return 0
    if "DOWNPOUR_DATA" not in os.environ:
        parser.error("DOWNPOUR_DATA must name a folder that has MNIST")
    rows: list[Row] = []
    try:
        for compared in trials(options):
            rows += measure(compared, options.repetitions, options.keep)
    except NoLab as error:
        parser.error(str(error))
    show(rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
