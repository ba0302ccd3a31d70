"""The commands that use a trained model: evaluate, predict, export, replay, audit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from downpour.base import options as base
from downpour.base.errors import one_line
from downpour.base.options import argument, flag, option
from downpour.cli import common
from downpour.cli.common import allow_code, command, refuse_both
from downpour.cli.printing import out, print_csv, print_json, progress_bar, say

_model = partial(
    argument,
    text="An experiment's ID, ID@best for the best model that it kept, or the path of a model's "
    "file or folder.",
    metavar="ID|FILE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EvaluateOptions:
    model: str = _model()
    data: Path | None = option(
        None,
        "For a built-in model: a .npz file or a folder of images by class. Uses its test part, or "
        "all of it, normalized as in training.",
        "PATH",
        default="the experiment's own test examples",
    )
    task_options: tuple[str, ...] = option(
        (),
        "Change an option of the task, such as the path of its examples. Repeatable.",
        "KEY=VALUE",
        default=False,
    )
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()


@command
def evaluate(options: _EvaluateOptions) -> None:
    """Measure a trained model on test examples.

    The loss and metrics are the ones that training reports after its last round.
    """
    allow_code(options.allow)
    from downpour.cli.spec_options import parse_fields
    from downpour.experiments.locating import find
    from downpour.experiments.trained_model import measure

    fields = parse_fields({"task_options": [*options.task_options]})
    measured = measure(
        find(options.model, options.shared),
        data=options.data,
        data_dir=options.data_dir,
        options=fields.get("task_options"),
    )
    if options.as_json:
        print_json(asdict(measured))
        return
    say(f"loss {measured.loss:.6g}")
    for name, value in measured.metrics.items():
        say(f"{name} {value:.6g}")
    say(f"{measured.samples:,} examples in {measured.seconds:.3g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PredictOptions:
    model: str = _model()
    examples: str = argument(
        "A .npz or .npy file (one example per row), an image, or a folder of images. For your own "
        "task, a part that its examples() knows, such as test.",
        "INPUT",
    )
    shared: Path = common.shared()
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()
    as_csv: bool = flag("Print CSV, a row for each example.", flag="--csv")


@command
def predict(options: _PredictOptions) -> None:
    """Print a trained model's predictions, a row each.

    A built-in model gives the number of the class and its probability; it normalizes examples as in
    training. A task gives the result of its predict(model, batch), by default the network's output.
    """
    refuse_both(json=options.as_json, csv=options.as_csv)
    allow_code(options.allow)
    from downpour.experiments.locating import find
    from downpour.experiments.trained_model import predict as predicted

    rows = predicted(find(options.model, options.shared), options.examples)
    if options.as_json:
        print_json(rows)
    elif options.as_csv:
        print_csv(_flat(rows))
    else:
        _print_table(rows)


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    out().print(table, highlight=False, markup=False)


def _flat(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give each number of an output its own column, unless rows differ in their number."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in [*columns.items()]:
        lists = [value for value in values if isinstance(value, list)]
        if len(lists) == len(rows) and len({*map(len, lists)}) == 1:
            del columns[name]
            columns |= {
                f"{name}_{place}": [*one] for place, one in enumerate(zip(*lists, strict=True))
            }
    texts = ([_shown(x, ".7g") for x in one] for one in columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*texts, strict=True)]


def _shown(value: Any, digits: str = ".4f") -> str:
    """Write a prediction; single precision has seven digits."""
    if isinstance(value, list):
        return f"[{', '.join(_shown(one, digits) for one in value)}]"
    return f"{value:{digits}}" if isinstance(value, float) else one_line(str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportOptions:
    model: str = _model()
    to: Path | None = option(
        None, "A new or empty folder.", "DIR", default="ID-export in the current folder"
    )
    shared: Path = common.shared()
    allow: tuple[str, ...] = common.allow()


@command
def export(options: _ExportOptions) -> None:
    """Write a trained model into a separate folder.

    The folder gets the network's plain state_dict as model.safetensors, the spec, and the facts
    about the data that building the network needs. `downpour.load_model(DIR)` loads it anywhere. If
    the network has save_pretrained, as Hugging Face's networks do, that method writes
    DIR/pretrained. The command prints the paths of its files.
    """
    allow_code(options.allow)
    from downpour.experiments.locating import find
    from downpour.experiments.trained_model import export as write

    found = find(options.model, options.shared)
    for path in write(found, options.to or Path(f"{found.file.parent.name}-export")):
        say(str(path))


_DIFFERS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayOptions:
    experiment: str = common.experiment()
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    until: int | None = option(
        None,
        "Stop after this version; 0 is the initial model.",
        "VERSION",
        default="all, and the final model",
    )
    to: Path | None = option(
        None,
        "Keep the last model and its spec, in a new or empty folder. A difference then does not "
        "end the replay.",
        "DIR",
        default="nothing is kept",
    )
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()


@command
def replay(options: _ReplayOptions) -> None:
    """Retrain an ended experiment, and compare every byte.

    The record gives each task's first version, and the order in which updates became versions. One
    process on this machine retrains the tasks in that order. At the first update or version whose
    checksum differs, the command names it, the worker that trained it, and that worker's numeric
    class. The exit status is then 1.
    """
    allow_code(options.allow)
    from downpour.cluster.options import wait_passively

    wait_passively()  # before torch is imported
    from downpour.experiments.replay import replay as made_again

    with _bar() as on_progress:
        outcome = made_again(
            options.experiment,
            shared=options.shared,
            data_dir=options.data_dir,
            until=options.until,
            to=options.to,
            on_progress=on_progress,
        )
    if options.as_json:
        path = str(outcome.model_file) if outcome.model_file else None
        print_json({**asdict(outcome), "model_file": path, "same": outcome.same})
    else:
        say(str(outcome))
        if outcome.model_file is not None:
            say(f"model {outcome.model_file}")
    if outcome.difference is not None:
        raise typer.Exit(_DIFFERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AuditOptions:
    experiment: str = common.experiment()
    share: float = option(0.01, "The share of its tasks, above 0 and up to 1; at least one.", "X")
    seed: int | None = option(None, "Draw the tasks of an earlier audit.", "N", default="any")
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()


@command
def audit(options: _AuditOptions) -> None:
    """Retrain a share of an experiment, and compare its bytes.

    This machine trains each drawn task alone; it must be of the workers' numeric class. The model
    version that a task began from must still exist, so the command says how many tasks it could
    draw. If an update has other bytes than on record, the exit status is 1.
    """
    allow_code(options.allow)
    from downpour.cluster.options import wait_passively

    wait_passively()  # before torch is imported
    from downpour.experiments.replay import audit as trained_alone

    with _bar() as on_progress:
        outcome = trained_alone(
            options.experiment,
            options.share,
            options.seed,
            shared=options.shared,
            data_dir=options.data_dir,
            on_progress=on_progress,
        )
    if options.as_json:
        print_json(asdict(outcome))
    else:
        _print_table(outcome.rows)
        for line in outcome.lines():
            say(line)
    if not all(row["agrees"] for row in outcome.rows):
        raise typer.Exit(_DIFFERS)


@contextmanager
def _bar() -> Iterator[Callable[[float, int], None]]:
    """Show the number of trained tasks, on a terminal."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}")
    with progress_bar("tasks", None, (*text, TimeRemainingColumn()), count="") as show:
        yield lambda done, tasks: show(completed=done, total=tasks, count=f"{int(done)}/{tasks}")
