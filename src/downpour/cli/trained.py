"""The commands that use a trained model: evaluate, predict, export, replay."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from downpour.cli.printing import check_format, err, out, print_json, say
from downpour.host.text import one_line

if TYPE_CHECKING:
    from downpour.base.states import Evaluation
    from downpour.experiments.trained_model.predicting import Predictions


Model = Annotated[
    str,
    typer.Argument(
        metavar="ID|FILE",
        help="An experiment's ID, ID@best for the best model that it kept, or the path of a "
        "model's file or folder.",
    ),
]


Shown = Annotated[bool, typer.Option("--csv", help="Print CSV, a row for each example.")]


def evaluate(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="PATH",
            parser=path_option("data"),
            help="For a built-in model: a .npz file or a folder of images by class. Uses its "
            "test part, or all of it, normalized as in training.",
            show_default="the experiment's own test examples",
        ),
    ] = None,
    task_options: Annotated[
        list[str] | None,
        typer.Option(
            "--task-options",
            metavar="KEY=VALUE",
            help="Change an option of the task, such as the path of its examples. Repeatable.",
            show_default=False,
        ),
    ] = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    *,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model on test examples.

    The loss and metrics are the ones that training reports after its last round.
    """
    allow_code(allow)
    from downpour.cli.spec_options import parse_fields
    from downpour.experiments.trained_model.locating import find
    from downpour.experiments.trained_model.predicting import measure

    options = parse_fields({"task_options": task_options or []}).get("task_options")
    trained = find(model, shared)
    measured = measure(trained, data=data, data_dir=data_dir, options=options)
    if as_json:
        print_json(asdict(measured))
    else:
        _print_measured(measured)


def _print_measured(measured: Evaluation) -> None:
    say(f"loss {measured.loss:.6g}")
    for name, value in measured.metrics.items():
        say(f"{name} {value:.6g}")
    say(f"{measured.samples:,} examples in {measured.seconds:.3g} s")


def predict(
    model: Model,
    given: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A .npz or .npy file (one example per row), an image, or a folder of images; "
            "for your own task, the part that its examples() takes, such as test.",
        ),
    ],
    shared: Shared = SHARED,
    *,
    allow: Allow = None,
    as_json: AsJson = False,
    as_csv: Shown = False,
) -> None:
    """Print a trained model's predictions, a row each.

    A built-in model gives the number of the class and its probability; it normalizes examples as in
    training. A task gives the result of its predict(model, batch), by default the network's output.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    allow_code(allow)
    from downpour.experiments.trained_model.locating import find
    from downpour.experiments.trained_model.predicting import predict as predicted

    said = predicted(find(model, shared), given)
    if as_json:
        print_json(said.rows)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, said.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(said.rows)
    else:
        _print_table(said)


def _print_table(said: Predictions) -> None:
    from rich.table import Table

    table = Table(*said.columns, box=None, pad_edge=False)
    for row in said.rows:
        table.add_row(*(_shown(value) for value in row.values()))
    out().print(table, highlight=False, markup=False)


def _shown(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return one_line(text)


def export(
    model: Model,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            parser=path_option("to"),
            help="A new or empty folder.",
            show_default="ID-export in the current folder",
        ),
    ] = None,
    shared: Shared = SHARED,
    allow: Allow = None,
) -> None:
    """Write a trained model into a separate folder.

    The folder gets the network's plain state_dict as model.safetensors, the spec, and the facts
    about the data that building the network needs. `downpour.load_model(DIR)` loads it anywhere. If
    the network has save_pretrained, as Hugging Face's networks do, that method writes
    DIR/pretrained. The command prints the paths of its files.
    """
    allow_code(allow)
    from downpour.experiments.trained_model.loading import export as write
    from downpour.experiments.trained_model.locating import find

    found = find(model, shared)
    for path in write(found, to or Path(f"{found.file.parent.name}-export")):
        say(str(path))


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
    from downpour.cluster.worker.options import wait_passively

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
