"""The surroundings of a run: its shared directory, its data, and its launcher."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from downpour.base.values import DEFAULT_SHARED
from downpour.cluster.disturbing.disturbances import UNDISTURBED, Disturbances
from downpour.cluster.launchers import Launcher
from downpour.cluster.manager.options import checked_patience
from downpour.host.paths import path_of

Location = str | os.PathLike[str]
"""A path, or the URL of an object store, as users write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The needs of a run besides its spec; none of them changes the model.

    `shared` is the shared directory, `data_dir` a folder of datasets in torchvision's layout, and
    `patience` multiplies every timeout. `on` starts the workers: a launcher, or the name of one.
    `on_name` is the name of a launcher with options, if it is known. `disturbances` happen to the
    processes of a local launcher.
    """

    shared: Path
    data_dir: Path | None = None
    patience: float = 1.0
    on: Launcher | str = "local"
    on_name: str | None = None
    disturbances: Disturbances = UNDISTURBED

    @classmethod
    def of(
        cls,
        shared: Location | None = None,
        data_dir: Location | None = None,
        patience: float = 1.0,
        on: Launcher | str | None = None,
        on_name: str | None = None,
    ) -> Self:
        """Return surroundings from a user's arguments; the environment fills in missing ones.

        Raises:
            SpecError: a path is invalid, or the patience is not a positive number.
        """
        source = data_dir or os.environ.get("DOWNPOUR_DATA")
        return cls(
            shared=shared_path(shared),
            data_dir=path_of("data_dir", source) if source else None,
            patience=checked_patience(patience),
            on="local" if on is None else on,
            on_name=on_name,
        )

    @property
    def is_local(self) -> bool:
        """Whether manager and workers are processes of this machine, by their launcher's name."""
        return (self.on_name or self.on) == "local"

    @property
    def is_here(self) -> bool:
        """Whether the workers run on this machine, by their launcher's name."""
        return (self.on_name or self.on) in {"local", "inline"}


def shared_path(shared: Location | None) -> Path:
    """Return the shared directory: the given one, the environment's, or the default.

    Raises:
        SpecError: the argument is not a path.
    """
    if shared is None:
        shared = os.environ.get("DOWNPOUR_SHARED") or DEFAULT_SHARED
    return path_of("shared", shared)
