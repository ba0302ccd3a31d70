"""The options that several commands share; each call of one makes a field of a dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from downpour.base.errors import SpecError
from downpour.base.options import argument, flag, option
from downpour.base.values import DEFAULT_SHARED, PAGE_PORT
from downpour.learning.allowlist import allow_beside, allow_in

if TYPE_CHECKING:
    from collections.abc import Collection

    from downpour.core.spec import Spec

SHARED = Path(DEFAULT_SHARED)
RESULTS = Path("results")

shared = partial(
    option,
    value=SHARED,
    text="The shared directory, as this machine sees it.",
    metavar="DIR",
    variable="DOWNPOUR_SHARED",
)
shared_if_seen = partial(
    option,
    value=None,
    text="The cluster's shared directory or object store, which names the leading manager. "
    "With --manager, both must belong to one cluster.",
    metavar="DIR|URL",
    flag="--shared",
    variable="DOWNPOUR_SHARED",
    default="./shared_dir, then localhost:9090, if no --manager is given",
    reads="location",
)
allow = partial(
    option,
    value=(),
    text="Let the spec use your own module, as DOWNPOUR_ALLOW does. Python also looks for it in "
    "the current folder and next to FILE. `run` and `splits` allow modules next to FILE without "
    "it. Repeatable.",
    metavar="MODULE",
    default=False,
)
resume = partial(
    option,
    value=None,
    text="Continue after the last round of an ended experiment, as a new experiment. --epochs and "
    "a schedule count its rounds, too. Unless an option changes the training, the model is the "
    "same as without the stop. The data must be the same.",
    metavar="ID",
    default=False,
)
tensorboard = partial(
    option,
    value=None,
    text="Also write event files for TensorBoard, in a folder for each run in DIR.",
    metavar="DIR",
    default="not written",
)
dashboard = partial(
    flag,
    text=f"Serve a live page on this machine's loopback, at port {PAGE_PORT} or, if that is taken, "
    "at any free one. It ends with the run or the cluster.",
)
dashboard_port = partial(
    option,
    value=None,
    text="Serve the page at this port; 0: any free one.",
    metavar="N",
    default="not served",
)
as_json = partial(option, value=False, text="Print JSON instead of tables.", flag="--json")
as_csv = partial(option, value=False, text="Print CSV, a row for each epoch.", flag="--csv")
experiment = partial(argument, text="An experiment's identifier.", metavar="ID")


def allow_code(modules: Sequence[str], file: Path | None = None) -> None:
    """Allow a user's modules, and let Python find them in the current folder and next to a file."""
    allow_in([Path.cwd(), file.parent if file else None], modules)


def allow_own_code(spec: Spec, file: Path | None) -> None:
    """Allow the modules that a spec names if they are next to its file."""
    if file is not None:
        allow_beside(file.parent, spec.factories.values())


def refuse_unused(context: typer.Context, options: Collection[str], why: str) -> None:
    """Refuse these options of a command if they were given on the command line.

    An environment variable serves many commands, so it never conflicts.
    """
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in options and source is not None and source.name == "COMMANDLINE":
            raise SpecError(name.replace("_", "-"), value, why)


def refuse_both(**flags: bool) -> None:
    """Refuse flags that exclude each other."""
    given = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if len(given) > 1:
        raise SpecError("options", " ".join(given), "cannot be combined; give one of them")
