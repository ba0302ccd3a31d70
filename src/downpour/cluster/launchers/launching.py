"""The user's choice of a launcher: options of a command, and the table `[launch]` of a file.

They have `on`, `workers`, and options of all plans (`LaunchPlan`) and of single `LauncherKind`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter, ValidationError

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.options import option_words, options_of
from downpour.base.values import merged, missing
from downpour.cluster.launchers import LAUNCHERS, kind_of
from downpour.cluster.launchers.base import Launcher, LaunchPlan
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.files.spec_file import read_launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """A launcher that makes clusters as a user wants them, and the words that the user chose."""

    on: str
    launcher: Launcher
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the launcher."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every plan."""
    workers: int | None = None

    @classmethod
    def of(cls, typed: Mapping[str, Any], table: Mapping[str, Any]) -> Self:
        """Make it from typed options and a checked table; what a user typed comes first.

        The table's options belong to its launcher. If the user names another one, we ignore them.
        """
        given = {name: value for name, value in typed.items() if value not in (None, [])}
        on, named = given.get("on"), given.get("on") or table.get("on", "local")
        kind, its = kind_of(named), owners()
        options = {n: v for n, v in table.items() if n in its and (on is None or on in its[n])}
        options |= {n: v for n, v in given.items() if n in its}
        for name, value in options.items():
            if named not in its[name]:
                raise SpecError(name, value, f"needs --on {' or '.join(its[name])}")
        launcher = kind.launcher(options)
        settings: dict[str, Any] = {}
        for name, key in _keys().items():
            if (value := given.get(name, table.get(key))) is not None:
                settings[name] = tuple(value) if isinstance(value, list) else value
        LaunchPlan(ManagerOptions(), 1, **settings)  # refuses invalid settings
        return cls(
            on=named,
            launcher=lambda plan: launcher(replace(plan, **settings)),
            options=options,
            settings=settings,
            workers=given.get("workers", table.get("workers")),
        )

    def check(self, spec: Spec) -> None:
        """Refuse a spec that needs labels that no worker will have."""
        refuse_unmet(spec, self.on, self.options, self.settings.get("labels", ()))

    def words(self) -> list[str]:
        """Return command-line words that ask for the same launcher."""
        keys = _keys()
        named = {keys[name]: value for name, value in self.settings.items()} | {**self.options}
        words = ["--on", self.on]
        for name, value in named.items():
            words += option_words(f"--{name.replace('_', '-')}", value)
        return words

    def planned(self, plan: LaunchPlan) -> str:
        """Return a description of the processes that a plan would start."""
        kind = kind_of(self.on)
        if kind.planned is None:
            accepted = f"needs --on {' or '.join(planning())}"
            raise SpecError("dry_run", value=True, accepted=accepted)
        return kind.planned(kind.given(self.options), plan)


def launch_of(file: Path) -> Launching:
    """Return what a file's table asks for, or the defaults if the file has none."""
    table = checked_table(read_launch(file), file, takes_workers=True)
    on, its = table.get("on", "local"), owners()
    for name, value in table.items():
        if name in its and kind_of(on) and on not in its[name]:
            raise SpecError(f"launch.{name}", value, f"needs on = {' or '.join(its[name])}")
    return Launching.of({}, table)


def refuse_unmet(spec: Spec, on: str, options: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Refuse a spec that no worker of a launcher could train, because it would wait forever.

    `options` are those of the launcher `on`, and all workers have `labels`.
    """
    if not (spec.needs or spec.shard_needs):
        return
    kind = kind_of(on)
    sorts = [merged(labels, own) for own in kind.labels(kind.given(options))]
    wanted = {"needs": spec.needs}
    wanted |= {
        f"shard_needs.{shard}": (*spec.needs, *needs) for shard, needs in spec.shard_needs.items()
    }
    for name, needs in wanted.items():
        # Name the labels that the best sort of machine lacks, because ssh's hosts differ.
        lacking = min((missing(own, needs) for own in sorts), key=len)
        if lacking:
            key = lacking[0].partition("=")[0]
            accepted = f"the workers to start lack this label; add --label {key}=VALUE"
            raise SpecError(name, lacking[0], accepted)


_WORDS = {str: "text", float: "a number", int: "a whole number", list[str]: "a list of strings"}


def checked_table(table: Mapping[str, Any], file: Path, *, takes_workers: bool) -> dict[str, Any]:
    """Return a table's fields, with paths as this process finds them."""
    kinds: dict[str, Any] = {"on": str} | ({"workers": int} if takes_workers else {})
    paths, counts = set(), set()
    for kind in (LaunchPlan, *(kind_of(on).options for on in LAUNCHERS)):
        hints = {} if kind is None else get_type_hints(kind)
        for name, (_, text) in options_of(kind).items():
            key = text.key(name)
            kinds[key] = list[str] if hints[name] == tuple[str, ...] else hints[name]
            counts |= {key} if text.reads == "count" else set()
            paths |= {key} if text.path else set()
    checked = {}
    for name, value in table.items():
        if name not in kinds:
            hint = did_you_mean(name, kinds, before="") or f"there are {', '.join(kinds)}"
            raise SpecError(f"launch.{name}", value, f"no such option; {hint}")
        if name in counts and type(value) is int:
            value = str(value)  # noqa: PLW2901 - the command line gives it as text, too
        try:
            checked[name] = TypeAdapter(kinds[name]).validate_python(value, strict=True)
        except ValidationError:
            raise SpecError(f"launch.{name}", value, f"must be {_WORDS[kinds[name]]}") from None
        if name in paths:
            checked[name] = str(file.parent / Path(value).expanduser())
    return checked


def owners() -> dict[str, list[str]]:
    """Return, for each option of a launcher, the launchers that it belongs to."""
    of = {on: kind_of(on).texts() for on in LAUNCHERS}
    return {name: [on for on in of if name in of[on]] for texts in of.values() for name in texts}


def planning() -> list[str]:
    """Return the launchers that can show what they would submit or run."""
    return [on for on in LAUNCHERS if kind_of(on).planned is not None]


def _keys() -> dict[str, str]:
    """Return the key in a table of each option of all plans, by its field."""
    return {name: text.key(name) for name, (_, text) in options_of(LaunchPlan).items()}
