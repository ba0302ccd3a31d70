"""Runs several workers of one command on this machine; each process ends with the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from downpour.cluster.launchers.base import Ended
from downpour.cluster.launchers.local_engine import LocalEngine
from downpour.cluster.worker.options import WorkerOptions
from downpour.learning.devices import devices_for

LOOK_SECONDS = 0.2


def run_group(
    worker: WorkerOptions, count: int, log: Path | None, wait: Callable[[float], bool]
) -> Mapping[str, Ended]:
    """Run workers until all have ended; returns how each one ended, by name.

    Args:
        worker: the options of all workers; the name must not be empty. See `numbered`.
        count: the number of workers.
        log: the file that their output is appended to, each line with the worker's name; None:
            standard error.
        wait: called with the seconds to wait; returns early, and true, when a signal tells this
            process to let its workers leave.
    """
    engine = LocalEngine(worker.manager)
    over: dict[str, Ended] = {}
    names = []
    try:
        for number in range(1, count + 1):
            one = on_a_card(numbered(worker, number))
            engine.start(one, {}, log or os.dup(2))  # which may be a socket, without a path
            names.append(one.name)
        while len(over) < count:
            if wait(LOOK_SECONDS):
                for name in names:
                    engine.stop(name)
            over |= engine.ended()
    finally:
        engine.close()
    return over


def numbered(worker: WorkerOptions, number: int) -> WorkerOptions:
    """Return one worker's options out of several: its name ends with its number; ports count up."""

    def counted(port: int) -> int:
        return port + number - 1 if port else 0

    metrics = worker.metrics_port
    return replace(
        worker,
        name=f"{worker.name}-{number}",
        place=number - 1,
        port=counted(worker.port),
        metrics_port=counted(metrics) if metrics is not None else None,
        ready_file=f"{worker.ready_file}-{number}" if worker.ready_file else "",
    )


def on_a_card(worker: WorkerOptions) -> WorkerOptions:
    """Return the options with the device of this machine that this worker should take.

    Raises:
        SpecError: this machine lacks such a device.
    """
    devices = devices_for(worker.device)
    return replace(worker, device=devices.spread(worker.device, worker.place))
