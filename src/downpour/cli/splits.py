"""`downpour splits`: shows how a spec's split, and other splits, cut the training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.base.errors import SpecError
from downpour.cli.figure_file import check_figure, figure_option
from downpour.cli.options import (
    SHARED,
    Allow,
    AsJson,
    DataDir,
    Shared,
    allow_code,
    allow_own_code,
    path_option,
    whole_number,
)
from downpour.cli.printing import note, out, print_json
from downpour.core.spec import Spec
from downpour.files.spec_file import read_spec
from downpour.host.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downpour.core.splitters.cut import SplitCut


SpecFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", parser=path_option("FILE"), help="A TOML file with the spec."),
]
Shards = Annotated[
    int | None,
    typer.Option(
        "--shards",
        metavar="N",
        parser=whole_number,
        help="The number of shards.",
        show_default="the spec's, or as many as `downpour run` would train here",
    ),
]
Splits = Annotated[
    list[str] | None,
    typer.Option(
        "--split",
        metavar="random|class|equal|dirichlet(ALPHA)",
        help="Show this split in place of the spec's. Repeatable, to compare several.",
        show_default=False,
    ),
]
FigureFile = Annotated[Path | None, figure_option("Also draw a figure", shown_default="not drawn")]


def splits(
    file: SpecFile,
    shards: Shards = None,
    split: Splits = None,
    to: FigureFile = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    *,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Show how a split cuts the training data into shards.

    The manager makes the same shards, with the spec's seed, limits and validation. This command
    trains nothing and starts no process. For each shard, a table shows the number of examples and
    of classes, the share of the most frequent class, and the examples of each class.

    The distance of a shard is the total variation distance between its class shares and those of
    all shards together: half the sum of the absolute differences over all classes. It is 0 if the
    shard has the mixture of all data, and near 1 if it has only classes that are rare elsewhere.
    The summary has the mean over shards, and the size of the largest shard over the smallest's.

    A table shows the first 40 shards, and the first 20 classes or as many as fit. --json has all. A
    dataset without classes has only sizes. If the shared directory exists, the command leaves the
    prepared data there for a run; otherwise it removes them.
    """
    if to is not None:
        require("downpour splits --to", "report")
        check_figure("to", to)
    allow_code(allow, file)
    spec = _with_shards(read_spec(file), shards)
    allow_own_code(spec, file)
    from downpour.experiments.running.cutting import cuts_of, shards_for

    number = shards_for(spec)
    cuts = cuts_of(spec, split or [], number, shared, data_dir)
    if spec.shards is None:
        note(f"shards = {number}, as `downpour run` would take here; --shards takes another number")
    _print(cuts, spec, as_json=as_json)
    if to is not None:
        _draw(cuts, to)


def _with_shards(spec: Spec, shards: int | None) -> Spec:
    return spec if shards is None else spec.replace(shards=shards)


def _print(cuts: Sequence[SplitCut], spec: Spec, *, as_json: bool) -> None:
    from downpour.experiments.tables.split_tables import split_table, split_values

    if as_json:
        named = {"seed": spec.seed, "shards": len(cuts[0].shards)}
        print_json({**named, "splits": [split_values(cut) for cut in cuts]})
        return
    for place, cut in enumerate(cuts):
        if place:
            out().print()
        out().print(split_table(cut, out().width))


def _draw(cuts: Sequence[SplitCut], path: Path) -> None:
    from downpour.experiments.figures.export import written
    from downpour.experiments.figures.split_figure import split_figure

    try:
        path.write_bytes(written(split_figure(cuts), path))
    except OSError as error:
        raise SpecError("to", str(path), f"cannot be written ({error.strerror})") from None
    note(f"drawn: {path}")
