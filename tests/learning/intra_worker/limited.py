"""A training with helpers, in a process whose memory is limited; a program of its own.

It writes a line of JSON: a checksum of the state, how many processes computed the last step, how
often memory was too small, and the seconds of its last step; or why it failed.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STEPS = 6


def checksum(state: Mapping[str, Any]) -> str:
    """Return a checksum of a state, all of it."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        found.update(name.encode() + state[name].tobytes())
    return found.hexdigest()


def train(spec_text: str, folder: str, key: str) -> dict[str, Any]:
    """Train a few steps, each with all helpers that there are."""
    # Here, because the process enters its groups first.
    import numpy as np

    from downpour.core.spec import Spec
    from downpour.host.machine import fail_instead_of_dying
    from downpour.learning.intra_worker.team import Team
    from downpour.learning.tasks.agreement import open_data
    from downpour.learning.tasks.loaded import load
    from downpour.learning.training.loop import LocalTask, ShardTraining

    fail_instead_of_dying()
    spec = Spec.from_toml(spec_text)
    loaded = load(spec, open_data(spec, Path(folder), key))
    network = loaded.network()
    team = Team(loaded, network, Path(folder), key) if spec.inside.processes > 1 else None
    task = LocalTask(indices=np.arange(STEPS * spec.batch_size), round=0, shard=0)
    training = ShardTraining(loaded, network, task, helpers=team)
    seconds = 0.0
    while training.steps_done < training.steps_total:
        if team is not None:
            team.wait_until_ready(120.0)
        began = time.monotonic()
        training.advance(1)
        seconds = time.monotonic() - began
    told = {"checksum": checksum(training.snapshot()), "seconds": seconds}
    if team is not None:
        told |= {"processes": team.processes, "shortages": team.shortages}
        team.close()
    return told


def main() -> None:
    """Enter the groups that are named, and train."""
    from downpour.base.errors import OutOfMemory

    spec_text, folder, key, *entrances = sys.argv[1:]
    for entrance in entrances:
        Path(entrance).write_text(str(os.getpid()))
    from downpour.cluster.options import keep_memory

    keep_memory()
    try:
        told = train(spec_text, folder, key)
    except OutOfMemory as error:
        told = {"failed": str(error)}
    sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main()
