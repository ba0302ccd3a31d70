"""The commands that keep a shared directory tidy: `du` measures its content, `rm` removes some."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.base.errors import SpecError, size_in_words
from downpour.base.names import whole_id
from downpour.base.options import argument, flag, option
from downpour.cli import common, printing
from downpour.cli.common import SHARED, command, since_age
from downpour.cli.printing import note, say

if TYPE_CHECKING:
    from downpour.experiments.housekeeping import DirectoryUsage, Housekeeper

_LARGEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _TidyOptions:
    shared: Path | str | None = option(
        None,
        "The shared directory or object store.",
        "DIR|URL",
        variable="DOWNPOUR_SHARED",
        default="./shared_dir",
        reads="location",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DuOptions(_TidyOptions):
    as_json: bool = common.as_json()


@command
def du(options: _DuOptions) -> None:
    """Show what takes room in the shared directory.

    The largest come first. For each experiment, the table shows its models, and the states that
    only `--resume` needs: those of optimizers, and earlier versions. `downpour rm` removes them.
    A file with two names counts once.
    """
    with _housekeeper(options.shared) as keeper:
        found = keeper.usage()
    if options.as_json:
        printing.print_json(asdict(found))
        return
    _print(found)


def _print(usage: DirectoryUsage) -> None:
    """Print the largest experiments and datasets, and the sums."""
    from downpour.show.tables.terminal_tables import text_table

    largest, data = usage.experiments[:_LARGEST], usage.datasets[:_LARGEST]
    days = (time.strftime("%Y-%m-%d", time.localtime(one.changed_seconds)) for one in largest)
    experiments = [
        ("experiment", [one.experiment for one in largest]),
        ("state", [one.state for one in largest]),
        ("changed", [*days]),
        ("models", [size_in_words(one.models_bytes) for one in largest]),
        ("states", [size_in_words(one.states_bytes) for one in largest]),
        ("other", [size_in_words(one.other_bytes) for one in largest]),
    ]
    users = (len(one.experiments) for one in data)
    datasets = [
        ("dataset", [one.key for one in data]),
        ("size", [size_in_words(one.total_bytes) for one in data]),
        ("used by", [f"experiments: {count}" if count else "no experiment" for count in users]),
    ]
    for columns in filter(lambda columns: columns[0][1], (experiments, datasets)):
        printing.out().print(text_table(columns, names={"state", "changed", "used by"}))
    total = size_in_words(usage.total_bytes)
    ending = f"{total} in all, {size_in_words(usage.logs_bytes)} of it logs"
    if more := len(usage.experiments) + len(usage.datasets) - len(largest) - len(data):
        ending += f"; {more} smaller ones are not shown (--json has all)"
    if usage.free_bytes is not None:
        ending += f"; {size_in_words(usage.free_bytes)} free"
    say(ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RmOptions(_TidyOptions):
    experiments: tuple[str, ...] = argument(
        "Experiments' IDs, or their beginnings if no others begin so.", "ID", ()
    )
    older: str = option(
        "",
        "Remove all experiments whose last change is older than this: 12h or 30d.",
        "AGE",
        default=False,
    )
    unused_data: bool = flag("Remove the prepared datasets that no experiment has used.")
    states: bool = flag(
        "Keep the experiments with their models; remove only the states that --resume needs."
    )
    unfinished: bool = flag("Remove also experiments that --resume or a manager could continue.")
    dry_run: bool = flag("Only say what would go.")


@command
def rm(options: _RmOptions) -> None:
    """Remove experiments that have ended, and unused datasets.

    The command never removes what a running or waiting experiment needs, and managers may run
    meanwhile. It refuses an experiment that --resume could continue, unless you add --unfinished;
    --older leaves such experiments there. If it refuses one of several IDs, it removes nothing.
    """
    if not (options.experiments or options.older or options.unused_data):
        raise SpecError("ID", None, "name experiments, or give --older or --unused-data")
    before = since_age("older", options.older)
    with _housekeeper(options.shared) as keeper:
        # An empty word, such as an unset variable, begins every ID.
        ids = keeper.experiments
        names = [whole_id(begin, ids if begin else ()) for begin in options.experiments]
        for name in names:
            keeper.check(name, unfinished=options.unfinished)
        if options.older:
            names += _removable(keeper, before, names, unfinished=options.unfinished)
        freed = sum([_remove(keeper, name, options) for name in names])
        for data in keeper.unused_data() if options.unused_data else ():
            freed += data.total_bytes if options.dry_run else keeper.remove_data(data.key)
            say(f"{data.key}: {size_in_words(data.total_bytes)}")
    verb = "would free" if options.dry_run else "freed"
    note(f"{verb} {size_in_words(freed)}")


def _removable(
    keeper: Housekeeper, before: float, besides: Sequence[str], *, unfinished: bool
) -> list[str]:
    """Return the old experiments that may go; say how many of them may not."""
    names, stay = list[str](), dict[str, str]()
    for name in keeper.older_than(before):
        try:
            keeper.check(name, unfinished=unfinished)
        except SpecError as error:
            stay[name] = error.accepted
        else:
            names += [name] if name not in besides else []
    for name, why in stay.items():
        note(f"{name} stays: {why}")
    return names


def _remove(keeper: Housekeeper, name: str, options: _RmOptions) -> int:
    """Remove an experiment or its states, and say so; returns how many bytes that frees."""
    if not options.dry_run:
        size = keeper.remove_states(name) if options.states else keeper.remove(name)
    else:
        use = keeper.usage_of(name)
        size = use.states_bytes if options.states else use.total_bytes
        if not options.states:
            keeper.forget(name)
    say(f"{name}{' (states)' if options.states else ''}: {size_in_words(size)}")
    return size


@contextmanager
def _housekeeper(location: Path | str | None) -> Iterator[Housekeeper]:
    from downpour.experiments.housekeeping import Housekeeper
    from downpour.files.store.directory import names_in
    from downpour.files.store.shared_directory import seen_location
    from downpour.record.stored_experiments import stored_records

    shared = seen_location(location or SHARED)
    if shared.bucket is None:
        names_in(shared.root)  # a missing folder is refused in one line
    with stored_records(shared) as records:  # from a bucket, copies of them
        yield Housekeeper(shared, records)
