"""A helper's process: computes its share of each step until its worker is gone.

A worker starts it as `python -m downpour.learning.intra_worker.helper SOCKET MEMORY`. Both are file
descriptors.
"""

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from socket import socket
from typing import TextIO

import torch

from downpour.base.errors import OutOfMemory
from downpour.core.families import ARRANGEMENTS
from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.blame import users_errors
from downpour.learning.intra_worker import helper_process
from downpour.learning.intra_worker.team import Arrangement
from downpour.learning.shipping import use
from downpour.learning.tasks.agreement import open_data
from downpour.learning.tasks.loaded import load


class Helper:
    """Builds the network that its worker trains, in the same memory."""

    def __init__(self, work: helper_process.HelperTask, memory: int) -> None:
        spec = Spec.from_toml(work.spec)
        if work.code:
            use(Path(work.code))
        torch.set_num_threads(spec.threads)
        data = open_data(spec, Path(work.datasets), work.data_key)
        loaded = load(spec, data)
        network = loaded.network()
        self._spec = loaded.spec
        numerics.place(network, self._spec, images=loaded.images)
        shared = helper_process.SharedNetwork(network, memory, work.gradients).attach()
        network.train()
        arrangement: Arrangement = ARRANGEMENTS[self._spec.inside.how]
        self._work = arrangement.helping(loaded, network, shared, work.share)

    def do(self, job: helper_process.HelperJob) -> helper_process.Answer:
        """Do what the worker asks for; the answer says if it failed."""
        randomness = numerics.Randomness(
            job.task_seed, self._spec.device, beyond_torch=self._spec.trains_own_code
        )
        try:
            with numerics.settings(self._spec), randomness.active():
                return self._work.do(job, randomness)
        except users_errors() as error:
            # The worker computes the step on its own, and tells what is wrong if that fails.
            self._work.forget()
            return helper_process.Answer(
                job=job.number, done=False, short=isinstance(error, OutOfMemory)
            )


def help_worker(lines: Iterable[str], answers: TextIO, memory: int) -> None:
    """Answer each line: the first names the work, each further one is a job of it."""
    arriving = iter(lines)
    helper = Helper(helper_process.HelperTask.of(next(arriving)), memory)
    print(helper_process.Answer(job=0).to_line(), file=answers, flush=True)
    for line in arriving:
        print(helper.do(helper_process.HelperJob.of(line)).to_line(), file=answers, flush=True)


def main() -> None:
    """Help the worker that started this process."""
    # A terminal's Ctrl-C and Slurm's warnings go to all processes; the worker decides when its
    # helpers end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    connection, memory = (int(word) for word in sys.argv[1:])
    try:
        with socket(fileno=connection) as worker, worker.makefile("rw") as lines:
            help_worker(lines, lines, memory)
    except (BrokenPipeError, ConnectionResetError, StopIteration):
        return  # the worker has ended


if __name__ == "__main__":
    main()
