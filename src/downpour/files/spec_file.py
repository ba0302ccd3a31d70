"""Reads spec files; only this module does, so that `core/spec.py` stays pure.

It does not decide what a spec may contain. We refuse an unreadable file in one line, like an
invalid field.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.core.spec import Spec, toml_fields
from downpour.host.paths import read_user_file

_LAUNCH = "launch"
_SEARCH = "search"
_GRID = ("experiment", "trials")
_LISTS = {"betas", "needs", "prefers"}


def read_spec(path: Path, overrides: Mapping[str, Any] | None = None) -> Spec:
    """Read a spec from a TOML file; `overrides` replace its fields."""
    fields = read_toml(path)
    # The file may be meant for another command, which the error names.
    if _SEARCH in fields:
        accepted = "makes this a search: run it with `downpour tune`"
        raise SpecError(_SEARCH, fields[_SEARCH], accepted)
    refuse_grid(fields)
    if "workers" in fields:
        accepted = (
            "is not a field of one run; give `--workers` to `run`, while `submit` uses its "
            "manager's workers"
        )
        raise SpecError("workers", fields["workers"], accepted)
    return Spec.make({**fields, **(overrides or {})})


def read_toml(path: Path) -> dict[str, Any]:
    """Return the fields of a TOML file that a user names, without its table `[launch]`.

    That table chooses where to train, and has no effect on the result.
    """
    fields = _whole(path)
    fields.pop(_LAUNCH, None)
    return fields


def read_launch(path: Path) -> dict[str, Any]:
    """Return the table `[launch]` of a TOML file; empty if there is none."""
    table = _whole(path).get(_LAUNCH, {})
    if not isinstance(table, dict):
        raise SpecError(_LAUNCH, table, "must be a table of launch options")
    return table


def specs_in(folder: Path) -> list[Path]:
    """Return the TOML files in a folder that describe one experiment, by name.

    We leave out grids, searches and files of other programs.
    """
    return [path for path in sorted(folder.glob("*.toml")) if _is_spec(read_toml(path))]


def _is_spec(fields: Mapping[str, Any]) -> bool:
    # A `name` does not count, because other programs' files have one, too.
    has_own = bool(fields.keys() & Spec.model_fields.keys() - {"name"})
    return has_own and _SEARCH not in fields and not _axes(fields)


def _whole(path: Path) -> dict[str, Any]:
    if path.suffix == ".py":
        port = f"`downpour init --from {path}` makes a spec of a script"
        accepted = f"is Python, not TOML: train its task with --task {path.stem}:NAME, or {port}"
        raise SpecError("FILE", str(path), accepted)
    try:
        return toml_fields(read_user_file(path).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError("FILE", str(path), f"must be a readable TOML file ({reason})") from None


def refuse_grid(fields: Mapping[str, Any]) -> None:
    """Refuse a file for `downpour grid`: one with `[[experiment]]`, `trials` or lists of values."""
    for field in _axes(fields):
        raise SpecError(field, fields[field], "makes this a grid: run it with `downpour grid`")


def _axes(fields: Mapping[str, Any]) -> list[str]:
    """Return the fields that make a file a grid."""
    # If a field of the spec takes one value, a list of values is an axis.
    single = Spec.model_fields.keys() - _LISTS
    several = {name for name, value in fields.items() if isinstance(value, list) and len(value) > 1}
    return [name for name in fields if name in _GRID or name in several & single]
