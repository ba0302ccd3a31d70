"""The options with which every command proves that it belongs to a cluster."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from downpour.host.credentials import FILES, Credentials

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
