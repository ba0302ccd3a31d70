"""`downpour run`: train here and now, with processes that end with the command."""

from __future__ import annotations

from typing import Annotated

import typer

from downpour import api
from downpour.cli.options import SHARED, AsCsv, AsJson, DataDir, Shared
from downpour.cli.printing import err, print_result, print_spec
from downpour.cli.spec_options import with_spec
from downpour.reports.progress import ProgressDisplay
from downpour.spec import Spec

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Worker processes; also the number of shards where the spec names none.",
        show_default="as many as shards, few on few cores",
    ),
]


@with_spec
def run(
    spec: Spec,
    workers: Workers = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    *,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Train on this machine: a manager and workers start, train, print the result and end.

    The spec comes from FILE, from options, or both; without any, the digits set is trained.
    """
    plain = as_json or as_csv
    if not plain:
        print_spec(spec)
    with ProgressDisplay(err) as display:
        result = api.run(
            spec,
            workers=workers,
            shared=shared,
            data_dir=data_dir,
            on_status=display.show,
        )
    print_result(result, as_json=as_json, as_csv=as_csv)
