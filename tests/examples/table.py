"""What the tasks that ship cost and give, in a table: `python -m tests.examples.table`.

Each is trained by real processes, in the size in which it ships but for fewer steps:

- `lines`: of the user's code.
- `plain`, `here`: the training loss of the last epoch in a plain PyTorch loop, and with one worker
  and one shard; `test`: how far their losses on the test examples differ, relatively.
- `1, 3, 7`: whether that many workers make the same bytes of seven shards.
- `killed`, `moved`: whether the bytes stay the same where a worker dies in the middle, and where a
  slow one hands its shard over; `no` in brackets where nothing was handed over, because it was
  done too soon.
- `update`, `whole`: the bytes of an update, and those of the final model.

It takes half an hour on two cores.
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from downpour import Spec
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.learning.tasks.own import own_task
from downpour.record import Result
from tests.chaos.stage import Cluster
from tests.chaos.test_hand_over import mostly_stopped
from tests.examples.conftest import SMALL, Example, examples_here
from tests.examples.plain import plain_training
from tests.examples.test_real_processes import run_and_kill
from tests.examples.test_tasks import lines_of_code
from tests.specs import model_of

COLUMNS = "task", "lines", "plain", "here", "test", "1, 3, 7", "killed", "moved", "update", "whole"


def main() -> None:
    """Print a row for each example, or for those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="; ".join(SMALL))
    parser.add_argument("--steps", type=int, default=20, help="most steps a shard and epoch")
    asked = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        data = Path(os.environ.get("DOWNPOUR_DATA", "data"))
        examples = [e for e in examples_here(patch, data) if e.name in (asked.names or SMALL)]
        say("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
        for example in examples:
            spec = example.whole.replace(local_steps=asked.steps, epochs=2)
            say("| " + " | ".join(row(example, spec, Path(folder) / example.name)) + " |")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def row(example: Example, spec: Spec, folder: Path) -> tuple[str, ...]:
    """Train an example in all these ways."""
    alone = spec.replace(shards=1)
    plain = plain_training(own_task(alone), alone)
    here = trained(alone, 1, folder / "alone")
    last = here.rounds[-1]
    assert last.train_loss is not None
    assert last.test_loss is not None
    seven = {model_of(trained(spec.replace(shards=7), n, folder / str(n))) for n in (1, 3, 7)}
    killed, moved = disturbed(spec.replace(shards=2, policy="wait"), folder / "disturbed")
    return (
        example.name,
        str(lines_of_code(example.code)),
        f"{plain.losses[-1]:.7g}",
        f"{last.train_loss:.7g}",
        f"{abs(last.test_loss / plain.test_loss - 1):.0e}",
        "same" if len(seven) == 1 else "DIFFER",
        killed,
        moved,
        f"{here.tasks[-1].bytes:,}",
        f"{len(model_of(here)):,}",
    )


def trained(spec: Spec, workers: int, folder: Path) -> Result:
    """Train with some workers."""
    with embed(spec, workers, Surroundings(folder)) as (_, client):
        return client.wait(client.submit(spec))


def disturbed(spec: Spec, folder: Path) -> tuple[str, str]:
    """Train undisturbed, with a slow worker, and with one that dies; compare the models."""
    folder.mkdir()
    with ExitStack() as stack:
        cluster = Cluster(folder, stack)
        waited = model_of(cluster.run(spec))
        with mostly_stopped(cluster.workers[0].popen.pid):
            moved = cluster.run(spec.replace(policy="handoff"))
        killed = run_and_kill(cluster, cluster.workers[0], spec)
    there = bool(moved.stragglers and moved.stragglers.moves)
    same_moved = "same" if model_of(moved) == waited else "DIFFERS"
    return (
        "same" if model_of(killed) == waited else "DIFFERS",
        same_moved if there else f"{same_moved} (no)",
    )


if __name__ == "__main__":
    main()
