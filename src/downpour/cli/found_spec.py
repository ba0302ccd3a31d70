"""Which file `downpour run` trains if its command line names none."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.cli.spec_options import parse_fields
from downpour.cluster.launchers import kind_of
from downpour.core.spec import Spec
from downpour.experiments.running.worker_count import workers_for
from downpour.files.spec_file import read_spec, specs_in

_SAYS_WHAT = ("file", "resume", "task", "dataset", "model")
"""Arguments that say what to train, so that we look for no file."""


def with_found_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command find its FILE in the current folder; `remark` then names the file."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        if not any(arguments[name] for name in _SAYS_WHAT):
            files = specs_in(Path.cwd())
            if len(files) > 1:
                _refuse_options(files, arguments)
                names = ", ".join(file.name for file in files)
                accepted = f"name one of the specs in this folder: {names}"
                raise SpecError("FILE", None, accepted)
            for file in files:
                arguments |= {"file": file, "remark": f"no FILE was named, so this is {file.name}"}
        return command(**arguments)

    signature = inspect.signature(command)
    own = [one for name, one in signature.parameters.items() if name != "remark"]
    wrapped.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return wrapped


def _refuse_options(files: Sequence[Path], arguments: Mapping[str, Any]) -> None:
    """Refuse options that are wrong with each of these files.

    Raises:
        SpecError: names the option.
    """
    kind_of(arguments.get("on") or "local")
    workers_for(Spec(), arguments.get("workers"))
    fields = parse_fields({name: arguments.get(name) for name in Spec.model_fields})
    errors: dict[str, SpecError] = {}
    for file in files:
        try:
            read_spec(file, fields)
        except SpecError as error:
            errors.setdefault(str(error), error)
        else:
            return
    if len(errors) == 1:
        raise errors.popitem()[1]
