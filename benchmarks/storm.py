"""A storm of faults on the hosts of a lab: what it costs Downpour, and torchft on the same hosts.

The first host has the manager (torchft: the lighthouse). Each of `--members` further hosts has a
worker (torchft: a replica group), which is started again as soon as it ends. From the end of
`--calm` seconds on, something happens `--an-hour` times an hour, at random moments: a member is
killed, its host is cut off from all others for 15 to 40 s, or its processes are stopped for 10 to
30 s, as often as 28, 9 and 8, which are the shares of ft-diloco's storm. As often as 5, one more
member joins, or if it is there, leaves on SIGTERM. Who and when follows from `--seed`; who is cut
off or stopped is left alone until that is over.

All train LeNet-5 on MNIST, and meet ten times an epoch. A step takes `--step-seconds`, most of it
waiting, so that the hosts do not compete for the cores of this machine (`padded.py`). Downpour
trains `--epochs` in 8 shards with its defaults, and torchft for `--seconds`.

`back_seconds` are from a kill to the host's next step from the common state (torchft: after it has
healed), and their 90 % quantile. `useful` are the steps in updates that counted over all steps
that anybody took. `members` is the share of the members that contribute to a round, and `pace` are
rounds per second of the storm over those of the calm. `same_bytes` says whether the final model is
that of an undisturbed run; torchft promises no such thing.

Needs root, and MNIST in the folder DOWNPOUR_DATA; see docs/results/storm.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common import Row, command_line, keep_run, show
from padded import NOTES, SECONDS
from peers.job import BATCH, MEETINGS, MOMENTUM, RATE, checksum
from peers.lab_starts import SYSTEMS
from peers.storm_members import LOOK_SECONDS, Member, Outcome, Storm, notes_of

import downpour
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine, UpdatedLine

if TYPE_CHECKING:
    from tests.lab.lab import Lab, Shared

_BENCHMARKS = Path(__file__).parent
_PORT = 29_500


def train_downpour(lab: Lab, options: argparse.Namespace) -> tuple[Storm, Outcome, float]:
    """Train with a manager and workers."""
    command = [sys.executable, "-m", "downpour"]
    shared = ["--shared", str(lab.folder)]
    first, *others = lab
    with (lab.path / "manager.log").open("w") as log:
        words = "manager", "--host", first.address, *shared, "--make-token"
        first.start(*command, *words, output=log, errors=log)
    while not any((lab.export / "terms").glob("[0-9]*")):
        time.sleep(LOOK_SECONDS)
    shared += ["--token-file", str(lab.folder / "token")]
    worker = [*command, "worker", *shared, "--name"]
    members = [Member(host, [*worker, host.name], lab.path) for host in others]
    spec = lab.path / "spec.toml"
    spec.write_text(spec_of(options.epochs).to_toml())
    first.run(*command, "submit", str(spec), *shared)
    [folder] = (lab.export / "experiments").iterdir()
    model, notes = folder / "model.safetensors", lab.path / "notes"
    storm, end = _through(members, options, model.exists, notes)
    outcome = notes_of(notes, [host.name for host in others], trial_steps=4)
    story = read_record(folder / "record.jsonl")
    updates = [fact for _, fact in story if isinstance(fact, UpdatedLine)]
    outcome.useful = sum(update.steps for update in updates)
    late = story[-1][0] - end  # the record counts from the submission
    for at, fact in story:
        if isinstance(fact, AggregatedLine):
            took_part = {one.worker for one in updates if one.round == fact.round}
            outcome.rounds[fact.round] = at - late, len(took_part)
    outcome.model = checksum(model.read_bytes())
    return storm, outcome, end


def spec_of(epochs: int) -> downpour.Spec:
    """Return what Downpour trains."""
    return downpour.Spec(
        name="storm",
        dataset="mnist",
        model="padded:build",
        batch_size=BATCH,
        learning_rate=RATE,
        momentum=MOMENTUM,
        epochs=epochs,
        meet=MEETINGS,
        shards=8,
        evaluate_every=0,
    )


def undisturbed(options: argparse.Namespace) -> Row:
    """Train without a lab, so that nothing happens and no step waits."""
    downpour.allow("padded", "lenet")
    with tempfile.TemporaryDirectory() as shared:
        result = downpour.run(spec_of(options.epochs), workers=2, shared=shared)
        assert result.model_file is not None
        return {"system": "undisturbed", "model": checksum(result.model_file.read_bytes())}


def train_torchft(lab: Lab, options: argparse.Namespace) -> tuple[Storm, Outcome, float]:
    """Train with a lighthouse and replica groups."""
    python = SYSTEMS["torchft"].python
    first, *others = lab
    lighthouse = str(Path(python).with_name("torchft_lighthouse"))
    with (lab.path / "lighthouse.log").open("w") as log:
        words = "--bind", f"[::]:{_PORT}", "--min_replicas", "1"
        first.start(lighthouse, *words, output=log, errors=log)
    script = [python, str(_BENCHMARKS / "peers/torchft_groups.py"), "--padded"]
    script += ["--examples", "60000", "--epochs", "100000", "--workers", str(options.members)]
    members = []
    for number, host in enumerate(others):
        variables = {
            "REPLICA_GROUP_ID": str(number),
            "TORCHFT_LIGHTHOUSE": f"http://{first.address}:{_PORT}",
            "TORCHFT_HOST": host.address,
        }
        members.append(Member(host, script, lab.path, variables))
    ends_at = time.monotonic() + options.seconds
    notes = lab.path / "notes"
    storm, end = _through(members, options, lambda: time.monotonic() >= ends_at, notes)
    outcome = notes_of(notes, [host.name for host in others])
    outcome.taken -= sum(outcome.running.values())  # these might have counted
    return storm, outcome, end


def _through(
    members: Sequence[Member], options: argparse.Namespace, is_over: Callable[[], bool], notes: Path
) -> tuple[Storm, float]:
    """Let the members train to the end; the calm begins when each of them has taken a step."""
    *constant, _ = members
    for member in constant:
        member.is_wanted = True

    def has_begun() -> bool:
        return {file.name.split()[0] for file in notes.iterdir()} >= {m.host.name for m in constant}

    storm = Storm(members, options)
    end = storm.weather(is_over, has_begun)
    for member in members:
        if member.process is not None:
            member.process.send_signal(signal.SIGKILL)
    return storm, end


TRAIN = {"downpour": train_downpour, "torchft": train_torchft}


def measure(system: str, options: argparse.Namespace) -> Row:
    """Let a system train through the storm."""
    from tests.lab.lab import Lab

    shared: Shared = "folder" if system == "downpour" else "nothing"
    with Lab("switch", hosts=options.members + 2, shared=shared) as lab:
        (lab.path / "notes").mkdir()
        for host in lab:
            host.environment |= {
                SECONDS: str(options.step_seconds / BATCH),
                NOTES: str(lab.path / "notes"),
                "PYTHONPATH": os.pathsep.join([str(_BENCHMARKS), *sys.path[1:]]),
                "OMP_NUM_THREADS": "1",
                "DOWNPOUR_ALLOW": "padded,lenet",
            }
        storm, outcome, end = TRAIN[system](lab, options)
    return {"system": system, "an_hour": options.an_hour, **outcome.row(storm, end)}


def main() -> None:
    """Measure and print."""
    sys.path.append(str(_BENCHMARKS.parent))
    parser = command_line(__doc__)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(TRAIN)}")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--an-hour", type=float, default=125.0)
    parser.add_argument("--calm", type=float, default=25.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=320.0)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="append each run to this file, as JSON lines")
    options = parser.parse_args()
    known = [*TRAIN, "undisturbed"]
    if unknown := set(options.systems) - set(known):
        parser.error(f"no system {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    rows = []
    for system in options.systems or known:
        rows.append(undisturbed(options) if system == "undisturbed" else measure(system, options))
        keep_run(options.keep, rows[-1])
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
