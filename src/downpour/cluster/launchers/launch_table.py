"""The table `[launch]` of a file: it chooses the launcher and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.values import checked_labels, merged, missing
from downpour.cluster.launchers import LAUNCHERS, Launcher, kind_of
from downpour.core.spec import Spec
from downpour.files.spec_file import read_launch
from downpour.network.discovery.waiting import checked_seconds


def refuse_unmet(spec: Spec, on: str, options: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Refuse a spec that no worker of a launcher could train, because it would wait forever.

    Args:
        spec: the training.
        on: the launcher's name.
        options: the options of the launcher that the user gave.
        labels: the labels of all workers.

    Raises:
        SpecError: names the field, and the label that is missing.
    """
    if not (spec.needs or spec.shard_needs):
        return
    kind = kind_of(on)
    sorts = [merged(labels, own) for own in kind.labels(kind.given(options))]
    wanted = {"needs": spec.needs}
    wanted |= {
        f"shard_needs.{shard}": (*spec.needs, *needs) for shard, needs in spec.shard_needs.items()
    }
    for field, needs in wanted.items():
        # Name the labels that the best sort of machine lacks, because ssh's hosts differ.
        lacking = min((missing(own, needs) for own in sorts), key=len)
        if lacking:
            key = lacking[0].partition("=")[0]
            accepted = f"the workers to start lack this label; add --label {key}=VALUE"
            raise SpecError(field, lacking[0], accepted)


_WORDS = {
    str: "text",
    float: "a number",
    int: "a whole number",
    list[str]: "a list of strings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTable:
    """The content of a table: the launcher's name, its options, and the common settings."""

    on: str = "local"
    workers: int | None = None
    idle_seconds: float = 0.0
    label: Sequence[str] = ()
    options: Mapping[str, Any]

    def launcher(self) -> Launcher | str:
        """Return the launcher; just its name if the table says nothing else."""
        kind = kind_of(self.on)
        for name, value in self.options.items():
            if self.on not in (its := owners()[name]):
                raise SpecError(f"launch.{name}", value, f"needs on = {' or '.join(its)}")
        launcher = kind.launcher(self.options)
        seconds = checked_seconds("idle_seconds", self.idle_seconds)
        labels = checked_labels(self.label)
        if not (self.options or seconds or labels):
            return self.on
        return lambda plan: launcher(replace(plan, idle_seconds=seconds, labels=labels))

    def check(self, spec: Spec) -> None:
        """Refuse a spec that needs labels which no worker will have."""
        refuse_unmet(spec, self.on, self.options, self.label)


def owners() -> dict[str, list[str]]:
    """Return, for each option, the launchers that it belongs to."""
    of = {on: kind_of(on).texts() for on in LAUNCHERS}
    return {name: [on for on in of if name in of[on]] for texts in of.values() for name in texts}


def launch_of(file: Path) -> LaunchTable:
    """Return a file's table, or the defaults if the file has none.

    Raises:
        SpecError: the file cannot be read, or the table is not valid.
    """
    table = checked_table(read_launch(file), file, takes_workers=True)
    options = {name: table.pop(name) for name in list(table) if name in owners()}
    return LaunchTable(**table, options=options)


def checked_table(table: Mapping[str, Any], file: Path, *, takes_workers: bool) -> dict[str, Any]:
    """Return a table's fields, with paths as this process finds them."""
    kinds: dict[str, Any] = {"on": str, "idle_seconds": float}
    kinds |= {"workers": int} if takes_workers else {}
    kinds["label"] = list[str]
    paths = set()
    for on in LAUNCHERS:
        hints = get_type_hints(kind_of(on).options) if kind_of(on).options else {}
        for name, (_, text) in kind_of(on).texts().items():
            kinds[name] = list[str] if hints[name] == tuple[str, ...] else hints[name]
            paths |= {name} if text.path else set()
    checked = {}
    for name, value in table.items():
        if name not in kinds:
            hint = did_you_mean(name, kinds, before="") or f"there are {', '.join(kinds)}"
            raise SpecError(f"launch.{name}", value, f"no such option; {hint}")
        try:
            checked[name] = TypeAdapter(kinds[name]).validate_python(value, strict=True)
        except ValidationError:
            raise SpecError(f"launch.{name}", value, f"must be {_WORDS[kinds[name]]}") from None
        if name in paths:
            checked[name] = str(file.parent / Path(value).expanduser())
    return checked
