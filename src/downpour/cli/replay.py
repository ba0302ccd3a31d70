"""`downpour replay`: train an experiment once more from its record, and compare the bytes."""

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
            help="Make no version after this one; 0 is the initial model.",
            show_default="all, and the final model",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            parser=path_option("to"),
            help="Keep the last model that was made, in a new or empty folder, with its spec; a "
            "difference then does not end the replay.",
            show_default="nothing is kept",
        ),
    ] = None,
    *,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Train an ended experiment again, and compare every byte.

    Its record says which task began from which version, and in which order updates became versions;
    the tasks are trained again in that order, on this machine, by one process. At the first update
    or version whose checksum differs the command says which it is, who trained it, and in which
    numeric class, and the exit status is 1.
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
    """Draw how many tasks are trained, on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}")
    columns = (*text, TimeRemainingColumn())
    shown = err().is_terminal
    with Progress(*columns, console=err(), disable=not shown, transient=True) as bars:
        bar = bars.add_task("tasks", total=None, count="")

        def show(done: float, tasks: int) -> None:
            bars.update(bar, completed=done, total=tasks, count=f"{int(done)}/{tasks}")

        yield show
