"""Which file `downpour run` trains if its command line names none."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.files.spec_file import specs_in

_SAYS_WHAT = ("file", "resume", "task", "dataset", "model")
"""Arguments that say what to train, so that we look for no file."""


def with_found_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command find its FILE in the current folder; `remark` then names the file."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        if not any(arguments[name] for name in _SAYS_WHAT):
            file = _found(Path.cwd())
            if file is not None:
                arguments |= {"file": file, "remark": f"no FILE was named, so this is {file.name}"}
        return command(**arguments)

    signature = inspect.signature(command)
    own = [one for name, one in signature.parameters.items() if name != "remark"]
    wrapped.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return wrapped


def _found(folder: Path) -> Path | None:
    """Return the one spec in a folder; None if there is none.

    Raises:
        SpecError: there are several, or a TOML file there cannot be read.
    """
    files = specs_in(folder)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise SpecError("FILE", None, f"name one of the specs in this folder: {names}")
    return files[0] if files else None
