"""A kind of launcher: everything that `--on`, `[launch]`, help texts and `--dry-run` need to know.

Each launcher's module ends with its `KIND`; `launchers/__init__.py` registers it by name, or an
installed package does. The options of a kind are a frozen dataclass. `option` makes its fields, and
command-line options follow from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.options import OptionText, option, options_of
from downpour.base.values import checked_labels
from downpour.cluster.launchers.base import Launcher, LaunchPlan

# Other values have a special meaning for an engine: Ray reads !in(…), and Slurm a40&nvlink.
_PLACE = re.compile(r"[\w.-]+=[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)


def manager_host() -> Any:
    """Return the field that all launchers have whose workers run on other machines."""
    text = "This machine's address, as the workers' machines reach it."
    return option("", text, "ADDRESS", default="the one that they see, or the address of its name")


def place() -> Any:
    """Return the field that all launchers have whose engine chooses machines by properties.

    `checked_place` checks it. Workers get its pairs as labels, so that labels and machine agree.
    """
    text = (
        "Start workers only on matching machines: VALUE is a feature of a Slurm node, "
        "KEY=VALUE is a label of a Ray node. Each worker gets it as a --label, too. "
        "Repeatable."
    )
    return option((), text, "KEY=VALUE", default=False)


def checked_place(place: Sequence[str]) -> None:
    """Refuse places that we could not ask an engine for."""
    for one in place:
        if not _PLACE.fullmatch(one):
            accepted = "must be KEY=VALUE, where VALUE has only letters, digits, '-', '_' and '.'"
            raise SpecError("place", one, accepted)
    try:
        checked_labels(place)
    except SpecError as error:
        raise SpecError("place", error.value, error.accepted) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherKind:
    """A place to run on.

    Args:
        title: the heading of its options in help.
        options: the dataclass of its options; None if it has none.
        make: makes a launcher from its options, or from None. It refuses invalid options, because
            we call it before we start or create anything.
        planned: takes the options and a plan, and returns what the launcher would submit or run.
        labels: takes the options, and returns the labels that the launcher gives its workers in
            addition to the command's, once for each sort of machine.
    """

    title: str
    make: Callable[[Any], Launcher]
    options: type | None = None
    planned: Callable[[Any, LaunchPlan], str] | None = None
    labels: Callable[[Any], Sequence[tuple[str, ...]]] = lambda _: [()]

    def texts(self) -> dict[str, tuple[Field[Any], OptionText]]:
        """Return its options by name."""
        return options_of(self.options)

    def given(self, options: Mapping[str, Any]) -> Any:
        """Return its options with the given values; lists become tuples.

        Raises:
            SpecError: it has no such option, or the value is invalid.
        """
        for name, value in options.items():
            if name not in self.texts():
                raise SpecError(name, value, f"is not an option of {self.title}")
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
        return None if self.options is None else self.options(**values)

    def launcher(self, options: Mapping[str, Any]) -> Launcher:
        """Return a launcher with the given options; raises as `given` does."""
        return self.make(self.given(options))
