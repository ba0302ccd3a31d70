"""The options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from downpour.base.values import DEFAULT_SHARED
from downpour.host.paths import FILES, Credentials, checked_url, is_object_store, path_of
from downpour.learning.allowlist import allow_beside, allow_in

if TYPE_CHECKING:
    from downpour.core.spec import Spec


def whole_number(text: str) -> int:
    """Read a whole number.

    Raises:
        typer.BadParameter: the text is not a whole number.
    """
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:80]!r} is not a whole number") from None


def number(text: str) -> float:
    """Read a number.

    Raises:
        typer.BadParameter: the text is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:80]!r} is not a number") from None


def path_option(field: str) -> Callable[[str], Path]:
    """Return a parser of paths.

    Typer's own parser calls stat on the path. If the file server doesn't answer, that call blocks
    and even Ctrl-C has no effect.
    """

    def read(text: str) -> Path:
        return path_of(field, text)

    return read


def workers_option(help_text: str, *, show_default: str) -> Any:
    """Return the option `--workers`, whose default depends on the command."""
    return typer.Option(
        "--workers",
        metavar="N",
        parser=whole_number,
        help=help_text,
        show_default=show_default,
    )


def location(text: str) -> Path | str:
    """Read a shared directory's location: an object store's URL stays text, all else is a path."""
    if is_object_store(text):
        return checked_url("shared", text)
    return path_of("shared", text)


def allow_code(modules: Sequence[str] | None, file: Path | None = None) -> None:
    """Allow a user's modules, and let Python find them in the current folder and next to a file.

    Raises:
        SpecError: one of them is not the name of a module.
    """
    allow_in([Path.cwd(), file.parent if file else None], modules or ())


def allow_own_code(spec: Spec, file: Path | None) -> None:
    """Allow the modules that a spec names if they are next to its file."""
    if file is not None:
        allow_beside(file.parent, spec.factories.values())


Manager = Annotated[
    str,
    typer.Option(
        "--manager",
        envvar="DOWNPOUR_MANAGER",
        metavar="HOST:PORT",
        help="The manager's address.",
        show_default="that of the leader in the shared directory",
    ),
]
Shared = Annotated[
    Path,
    typer.Option(
        "--shared",
        envvar="DOWNPOUR_SHARED",
        metavar="DIR",
        parser=path_option("shared"),
        help="The shared directory, as this machine sees it.",
    ),
]
Location = Annotated[
    Path,  # or a URL as text: Typer accepts no union
    typer.Option(
        "--shared",
        envvar="DOWNPOUR_SHARED",
        metavar="DIR|URL",
        parser=location,
        help="The shared directory, as this machine sees it, or an object store as s3://BUCKET/"
        "PREFIX (gs, az).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="DOWNPOUR_DATA",
        metavar="DIR",
        help="A folder of datasets in torchvision's layout (MNIST/raw/...).",
        exists=True,
        file_okay=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="MODULE",
        help="Let the spec use your own module, as DOWNPOUR_ALLOW does. Python also looks for "
        "it in the current folder and next to FILE. `run` and `splits` allow modules next to FILE "
        "without it. Repeatable.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="ID",
        help="Continue after the last round of an ended experiment, as a new experiment. "
        "--epochs and a schedule count its rounds, too. Unless an option changes the "
        "training, the model is the same as without the stop. The data must be the same.",
        show_default=False,
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="FACTOR",
        parser=number,
        help="Multiplies every timeout: for heartbeats, progress and missing files.",
    ),
]
ConnectSeconds = Annotated[
    float,
    typer.Option(
        "--connect-seconds",
        metavar="X",
        parser=number,
        help="Seconds to wait for a manager that does not answer yet.",
    ),
]
SharedIfSeen = Annotated[
    Path | None,
    typer.Option(
        "--shared",
        envvar="DOWNPOUR_SHARED",
        metavar="DIR|URL",
        parser=location,
        help="The cluster's shared directory or object store, which names the leading "
        "manager. With --manager, both must belong to one cluster.",
        show_default="./shared_dir, then localhost:9090, if no --manager is given",
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        parser=path_option("tensorboard"),
        help="Also write event files for TensorBoard, in a folder for each run in DIR.",
        show_default="not written",
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME[:TARGET]",
        help="Also log each epoch: csv:FILE, mlflow, wandb (offline) or trackio. Repeatable.",
        show_default=False,
    ),
]
OnEvent = Annotated[
    str,
    typer.Option(
        "--on-event",
        metavar="COMMAND",
        help="Run a command, without a shell, when an experiment finishes, fails, is "
        "cancelled, or waits for a worker. DOWNPOUR_EVENT, DOWNPOUR_EXPERIMENT, "
        "DOWNPOUR_NAME, DOWNPOUR_STATE and DOWNPOUR_REASON describe the event, as does "
        "JSON on standard input.",
        show_default="none",
    ),
]
OutDir = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        parser=path_option("out"),
        help="The folder for results.",
        show_default="./results/NAME",
    ),
]
ManagerElsewhere = Annotated[
    str,
    typer.Option(
        "--manager",
        metavar="HOST:PORT",
        help="Train on this manager's cluster, with its workers.",
        show_default="new processes on this machine",
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Run in the background, without this terminal; DIR/log.txt shows the progress.",
    ),
]
OnlyStatus = Annotated[
    bool, typer.Option("--status", help="Only show the progress; starts nothing.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, a row for each epoch.")]
Experiment = Annotated[str, typer.Argument(metavar="ID", help="An experiment's identifier.")]
AnyExperiment = Annotated[
    str, typer.Argument(metavar="ID", help="An experiment; without it, the active one.")
]

SHARED = Path(DEFAULT_SHARED)
RESULTS = Path("results")


_HELP = {
    "token_file": "The file with the cluster's token; DOWNPOUR_TOKEN may hold the token itself.",
    "tls_cert": "This machine's certificate, for mutual TLS.",
    "tls_key": "The certificate's private key.",
    "tls_ca": "The certificate of the authority that signs every machine's certificate.",
}


def with_credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes `credentials` the options that name them."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        given = {name: path for name in FILES if (path := arguments.pop(name))}
        credentials = Credentials.from_environment().with_files(given)
        return command(credentials=credentials, **arguments)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "credentials"
    ]
    parameters = [*own, *map(_option, FILES)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _option(name: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        envvar=FILES[name],
        metavar="FILE",
        help=_HELP[name],
        rich_help_panel="Trust",
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default="",
        annotation=Annotated[str, option],
    )
