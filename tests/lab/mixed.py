"""A cluster of machines that have little in common: `python -m tests.lab.mixed`.

Five hosts train a task that is not Downpour's: one at full speed, one with a quarter of it, one
with 1 GB of memory, one whose label a shard needs, and one without the task's code. The model must
have the bytes of one worker on this machine, which has everything. Then the same cluster trains
without its slow host, for the time: a slow machine must not make training slower.

All hosts share the processors of this machine, so full speed is less than one of them. Machines are
held to their speed once their workers are there.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine, AssignedLine
from tests.chaos.forked import model_of_run
from tests.lab.failing import until
from tests.lab.lab import Lab

ROOT = Path(__file__).parents[2]
CODE = ROOT / "examples" / "tasks"
TASK = "char_gpt"
DOWNPOUR = (sys.executable, "-m", "downpour")
FULL_SPEED = 0.4
"""Of a processor, so that two processors carry five hosts."""
SECONDS = 400.0
LOOK_SECONDS = 5.0
say = partial(print, flush=True)
_ALLOWED = {"DOWNPOUR_ALLOW": TASK, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a host has: its share of a processor, its memory, its labels, and the task's code."""

    processors: float = FULL_SPEED
    memory_bytes: int | None = None
    labels: tuple[str, ...] = ()
    has_code: bool = True

    @property
    def words(self) -> list[str]:
        """The options of its worker."""
        words = [word for label in self.labels for word in ("--label", label)]
        return words if self.has_code else [*words, "--accept-code"]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its worker."""
        return _ALLOWED | ({"DOWNPOUR_CODE": str(CODE)} if self.has_code else {})


MACHINES: Mapping[str, Machine] = {
    "full": Machine(),
    "slow": Machine(processors=FULL_SPEED / 4),
    "small": Machine(memory_bytes=10**9),
    "site-b": Machine(labels=("site=b",)),
    "bare": Machine(has_code=False),
}


@dataclass(slots=True)
class Trained:
    """What came of a training: its model, how long rounds took, what `status` said meanwhile."""

    model: bytes
    rounds_seconds: list[float]
    accounts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        first, *later = self.rounds_seconds
        return f"first round {first:.1f} s, then {statistics.median(later):.1f} s (median)"


def spec(epochs: int, shards: int = 5) -> list[str]:
    """Return the options of the experiment; shard 1 may be trained at site b alone."""
    words = [str(CODE / f"{TASK}.toml"), "--shards", str(shards), "--epochs", str(epochs)]
    return [*words, "--shard-needs", "1=['site=b']"]


def trained_alone(epochs: int) -> bytes:
    """Return the model of one worker that has the code, the memory and the label."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*spec(epochs), "--workers", "1", "--label", "site=b", "--allow", TASK]
        return model_of_run(Path(folder), *words, where=CODE)


def train(epochs: int, machines: Mapping[str, Machine] = MACHINES) -> Trained:
    """Train in a lab; the manager is on a host of its own."""
    with Lab("switch", hosts=1 + len(machines), shared="folder") as lab:
        first, *hosts = lab
        token = lab.path / "token"
        where = ["--shared", str(lab.folder), "--token-file", str(token)]
        having = MACHINES["full"].environment
        words = ["manager", "--host", first.address, *where, "--make-token"]
        first.start(*DOWNPOUR, *words, environment=having)
        until("there is a token", token.exists)
        for host, (name, machine) in zip(hosts, machines.items(), strict=True):
            words = ["worker", *where, "--name", name, *machine.words]
            host.start(*DOWNPOUR, *words, environment=machine.environment)

        def status() -> str:
            return first.run(*DOWNPOUR, "status", *where, status=None)

        until("all workers are there", lambda: all(name in status() for name in machines))
        for host, machine in zip(hosts, machines.values(), strict=True):
            host.limit(processors=machine.processors, memory_bytes=machine.memory_bytes)
        submit = ["submit", *spec(epochs), "--watch", *where]
        watching = first.start(*DOWNPOUR, *submit, cwd=CODE, environment=having)
        accounts = []
        for _ in range(int(SECONDS / LOOK_SECONDS)):
            with suppress(subprocess.TimeoutExpired):
                watching.wait(LOOK_SECONDS)
                break
            accounts.append(status())
        [model] = lab.export.glob("experiments/*/model.safetensors")
        return Trained(model.read_bytes(), _rounds(model.with_name("record.jsonl")), accounts)


def _rounds(record: Path) -> list[float]:
    """Return the seconds of each round, the first from its first assignment."""
    story = read_record(record)
    begun = next(at for at, line in story if isinstance(line, AssignedLine))
    ends = [at for at, line in story if isinstance(line, AggregatedLine)]
    return [end - start for start, end in pairwise([begun, *ends])]


def main() -> int:
    """Train without the slow host, and with it at each speed; 1 where models differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--slower", type=float, nargs="+", default=[4.0], help="how many times")
    options = parser.parse_args()
    alone = trained_alone(options.epochs)
    others = {name: machine for name, machine in MACHINES.items() if name != "slow"}
    usual = train(options.epochs, others)
    say(f"without the slow host: {usual}")
    same = usual.model == alone
    for times in options.slower:
        mixed = train(options.epochs, {**MACHINES, "slow": Machine(processors=FULL_SPEED / times)})
        say(mixed.accounts[len(mixed.accounts) // 2])
        say(f"with one at 1/{times:g} of the speed: {mixed}")
        same = same and mixed.model == alone
    say(f"the same bytes: {same}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
