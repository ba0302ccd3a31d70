"""`downpour replay`: retrains an experiment from its record, and compares the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from downpour.cli.options import (
    SHARED,
    Allow,
    AsJson,
    DataDir,
    Experiment,
    Shared,
    allow_code,
    path_option,
    whole_number,
)
from downpour.cli.printing import err, print_json, say

_DIFFERS = 1


def replay(
    experiment: Experiment,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    until: Annotated[
        int | None,
        typer.Option(
            "--until",
            metavar="VERSION",
            parser=whole_number,
            help="Stop after this version; 0 is the initial model.",
            show_default="all, and the final model",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            parser=path_option("to"),
            help="Keep the last model and its spec, in a new or empty folder. A difference "
            "then does not end the replay.",
            show_default="nothing is kept",
        ),
    ] = None,
    *,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Retrain an ended experiment, and compare every byte.

    The record gives each task's first version, and the order in which updates became versions. One
    process on this machine retrains the tasks in that order. At the first update or version whose
    checksum differs, the command names it, the worker that trained it, and that worker's numeric
    class. The exit status is then 1.
    """
    allow_code(allow)
    from downpour.cluster.worker.environment import wait_passively

    wait_passively()  # before torch is imported
    from downpour.experiments.reproduction.reproducing import replay as made_again

    with _bar() as on_progress:
        outcome = made_again(
            experiment,
            shared=shared,
            data_dir=data_dir,
            until=until,
            to=to,
            on_progress=on_progress,
        )
    if as_json:
        path = str(outcome.model_file) if outcome.model_file else None
        print_json({**asdict(outcome), "model_file": path, "same": outcome.same})
    else:
        say(str(outcome))
        if outcome.model_file is not None:
            say(f"model {outcome.model_file}")
    if outcome.difference is not None:
        raise typer.Exit(_DIFFERS)


@contextmanager
def _bar() -> Iterator[Callable[[float, int], None]]:
    """Show the number of trained tasks, on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}")
    columns = (*text, TimeRemainingColumn())
    shown = err().is_terminal
    with Progress(*columns, console=err(), disable=not shown, transient=True) as bars:
        bar = bars.add_task("tasks", total=None, count="")

        def show(done: float, tasks: int) -> None:
            bars.update(bar, completed=done, total=tasks, count=f"{int(done)}/{tasks}")

        yield show
