"""Run the same training in Downpour and in other systems; compare time, memory, lines and deaths.

Each peer is a script in `peers/` with its own environment under `out/peers/`: a venv that borrows
this one's torch and adds the packages that the peer needs. Peers take turns, and each repetition
shuffles their order, so a busy machine slows all of them alike. The load average is kept with every
figure. The benchmark reads only what a peer prints (`peers/job.py`). `peers/parts.py` explains the
measurements and columns. `lines` counts the script's lines without comments, blank lines and those
that only report progress.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Row, command_line, show
from matplotlib.figure import Figure
from peers.known import PEERS, SCRIPTS, Peer, environment_of
from peers.parts import Part, parts
from peers.running import Ran, run

from downpour.show.figures.style import LIGHT, WIDTH_INCHES, styled, to_svg

ENVIRONMENTS = Path(__file__).parent / "out" / "peers"
_TELLING = ("say(", "job.first_batch()", "job.epoch_ends(", "known", "epochs", '"""')

Runs = dict[str, list[Ran]]
"""A peer's runs, by the part that they are of."""


def lines_of(peer: Peer) -> int:
    """Count the lines of a peer's script that a user would write."""
    text = (SCRIPTS / peer.script).read_text("utf-8")
    lines = (line.strip() for line in text.splitlines())
    return sum(
        bool(line) and not line.startswith("#") and not any(word in line for word in _TELLING)
        for line in lines
    )


def row(peer: Peer, wanted: Mapping[str, Part], runs: Runs) -> Row:
    """Return a peer's line: medians over the repetitions."""
    columns: Row = {"peer": peer.name, "lines": lines_of(peer)}
    for name, some in runs.items():
        columns |= wanted[name].columns(peer, some)
    loads = [ran.load for some in runs.values() for ran in some]
    return columns | ({"load": f"{min(loads):.1f} to {max(loads):.1f}"} if loads else {})


def measure(
    peers: Sequence[Peer], wanted: Mapping[str, Part], repetitions: int
) -> Iterator[list[Row]]:
    """Measure peers in turns; one that cannot be installed gets a line that says why.

    Yields:
        All lines as they are by then, after each peer's turn.
    """
    pythons: dict[str, Path] = {}
    skipped: list[Row] = []
    for peer in peers:
        try:
            pythons[peer.name] = environment_of(peer, ENVIRONMENTS)
        except LookupError as error:
            skipped.append({"peer": peer.name, "after_kill": f"skipped: {error}"})
    there = [peer for peer in peers if peer.name in pythons]
    of: dict[str, Runs] = {peer.name: {} for peer in there}
    yield skipped
    for turn in range(repetitions):
        for peer in random.Random(turn).sample(there, len(there)):
            for name, part in wanted.items():
                if (turn and part.once) or (part.of_many and peer.alone):
                    continue
                ran = [run(peer, pythons[peer.name], way) for way in part.ways]
                of[peer.name].setdefault(name, []).extend(ran)
            print(f"{peer.name}: turn {turn + 1} of {repetitions}", file=sys.stderr)
            measured = [peer for peer in there if of[peer.name]]
            yield [*(row(peer, wanted, of[peer.name]) for peer in measured), *skipped]


def merged(kept: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a file with what was measured since, in the order of the peers."""
    by_name = {one["peer"]: one for one in kept}
    for one in rows:
        by_name[one["peer"]] = by_name.get(one["peer"], {}) | one
    return [by_name[peer.name] for peer in PEERS if peer.name in by_name]


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what the peers took, each relative to the least."""
    columns = {
        "first_batch_seconds": "to the first batch, s",
        "epoch_seconds": "epoch, s",
        "round_ms": "empty round, ms",
        "memory_mb": "memory, MB",
    }
    measured = [one for one in rows if one.get("epoch_seconds")][::-1]
    with styled(path.stem):
        figure = Figure(figsize=(WIDTH_INCHES, WIDTH_INCHES), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True)
        for axis, (column, label) in zip(axes.flat, columns.items(), strict=True):
            names = [str(one["peer"]) for one in measured]
            values = [float(one.get(column) or 0) for one in measured]
            axis.barh(names, values, color=LIGHT["ink"], height=0.5)
            for place, value in enumerate(values):
                where = (value, place)
                axis.annotate(_cell(value), where, xytext=(3, -3), textcoords="offset points")
            axis.set_xlabel(label)
            axis.margins(x=0.35)
    path.write_text(to_svg(figure, path.stem), "utf-8")


COLUMNS = {
    "peer": "system",
    "first_batch_seconds": "first batch, s",
    "epoch_seconds": "epoch, s",
    "accuracy_percent": "accuracy, %",
    "round_ms": "empty round, ms",
    "memory_mb": "memory, MB",
    "user_seconds": "processor time, s",
    "target_seconds": "command to 97 %, s",
    "lines": "lines",
}
MORE_COLUMNS = {
    "peer": "system",
    "ten_round_ms": "empty round of 10, ms",
    "large_round_ms": "of 4, 100 MB, ms",
    "slow_epoch_seconds": "epoch with a slow worker, s",
    "after_kill": "worker killed",
    "after_coordinator_kill": "first process killed",
}


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return rows as a page's table; a peer that was skipped says why in a row of its own."""
    lines = [" | ".join(columns.values())]
    lines += [" | ".join("---" if "kill" in name or name == "peer" else "--:" for name in columns)]
    lines += [" | ".join(_cell(row.get(column)) for column in columns) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def versions() -> dict[str, str]:
    """Return the versions of what was compared."""
    names = ("torch", "ray", "downpour-sgd")
    found = {name: importlib.metadata.version(name) for name in names}
    pins = [re.split(r"(?:\[.*])?==", pin) for peer in PEERS for pin in peer.requirements]
    return {**found, **dict(pins)}


def main() -> int:
    """Measure, or draw what was kept."""
    parser = command_line(__doc__)
    names, all_parts = [peer.name for peer in PEERS], list(parts(1))
    parser.add_argument("peers", nargs="*", help=f"only these of {', '.join(names)}")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--examples", type=int, default=6000)
    parser.add_argument("--parts", nargs="+", choices=all_parts, default=all_parts)
    parser.add_argument("--keep", type=Path, help="write the figures into this file, beside others")
    parser.add_argument("--figure", type=Path, help="only draw what --keep has written")
    parser.add_argument("--table", action="store_true", help="only print it as Markdown")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(names):
        parser.error(f"peers = {min(unknown)!r}: must be one of {', '.join(names)}")
    there = options.keep is not None and options.keep.exists()
    kept = json.loads(options.keep.read_text("utf-8"))["rows"] if there else []
    if options.figure is not None or options.table:
        if options.figure is not None:
            draw(kept, options.figure)
        if options.table:
            sys.stdout.write(markdown(kept, COLUMNS) + "\n" + markdown(kept, MORE_COLUMNS))
        return 0
    if "DOWNPOUR_DATA" not in os.environ:
        parser.error("DOWNPOUR_DATA must name a folder that has MNIST")
    chosen = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    wanted = {name: one for name, one in parts(options.examples).items() if name in options.parts}
    rows: list[Row] = []
    for rows in measure(chosen, wanted, options.repetitions):
        if options.keep is not None:
            found = {"rows": merged(kept, rows), "examples": options.examples}
            options.keep.write_text(json.dumps({"versions": versions(), **found}, indent=1) + "\n")
    show(rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
