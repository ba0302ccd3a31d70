"""Continues an ended experiment: as a new one that starts at its last model version.

Orders, generators and schedule follow from the number of the round. The new experiment's first
round counts as the one after the old experiment's last, even in the middle of an epoch. The outer
optimizer continues from its state. If the spec keeps them, so do the shards' optimizers. So the
model becomes the same, byte for byte, as if there had been no stop. The best model so far is
carried over, too, so `keep_best` and `stop_after` decide as they would have done.
We refuse examples that differ from the old ones, unless the user also changes the fields that name
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downpour.base.arguments import checked_call
from downpour.base.errors import SpecError
from downpour.base.values import is_bare_name
from downpour.cluster.manager.best_before import best_before
from downpour.core.spec import Spec
from downpour.experiments.running.surroundings import shared_path
from downpour.experiments.trained_model.locating import data_key_in, spec_in
from downpour.files.store import ModelName, SharedDirectory, parse_name

_DATA_FIELDS = {
    "task",
    "task_options",
    "dataset",
    "dataset_options",
    "data_path",
    "image_size",
    "train_limit",
    "test_limit",
}
"""The fields that a user changes to train on other examples."""


@checked_call()
def resumed(
    experiment: str, *, shared: str | os.PathLike[str] | None = None, **changes: Any
) -> Spec:
    """Return the spec that continues an ended experiment after its last round.

    `downpour.run(downpour.resumed(ID, epochs=20))` trains up to the twentieth epoch.

    Args:
        experiment: Its ID.
        shared: The shared directory; by default DOWNPOUR_SHARED, or else ./shared_dir.
        changes: Fields that differ from its own. `epochs` includes the epochs that it has had.

    Raises:
        SpecError: the experiment does not exist, it has no model, or no rounds remain.
    """
    return resumed_spec(experiment, shared_path(shared), changes)


def resumed_spec(experiment: str, shared: Path, changes: Mapping[str, Any]) -> Spec:
    """Return the spec that continues an experiment.

    Args:
        experiment: its ID.
        shared: the shared directory with its folder.
        changes: fields that differ from its own. `epochs` includes the epochs that it has had; by
            default, it is as many as the experiment should have had.

    Raises:
        SpecError: the experiment does not exist, it has no model, or no rounds remain; or
            `stop_after` has ended it. Or it stopped in the middle of an epoch, which another `meet`
            would cut differently.
        SharedDirectoryError: the shared directory cannot be used.
    """
    folder = SharedDirectory(shared).experiments / str(experiment)
    if not is_bare_name(str(experiment)) or not folder.is_dir():
        raise SpecError("resume", experiment, f"no such experiment in {shared}")
    versions = {
        parsed.version: entry.name
        for entry in folder.iterdir()
        if isinstance(parsed := parse_name(entry.name), ModelName)
    }
    if not versions:
        raise SpecError("resume", experiment, "has no model, because it never began to train")
    spec, last = spec_in(folder, experiment, field="resume"), max(versions)
    done, each = spec.rounds_before + last, spec.meetings.each
    epochs_done, wanted = done // each, changes.get("epochs", spec.meetings.epochs_in_all)
    if isinstance(wanted, int) and wanted <= epochs_done:
        accepted = f"{experiment} has trained {epochs_done} epochs; set a larger total"
        raise SpecError("epochs", wanted, accepted)
    begin = {
        "init_from": f"{experiment}/{versions[last]}",
        "init_checksum": None,
        "outer_checksum": None,
        "states_checksum": None,
        "best_checksum": None,
        "epochs": wanted - epochs_done if isinstance(wanted, int) else wanted,
        "data_key": None if changes.keys() & _DATA_FIELDS else data_key_in(folder) or spec.data_key,
    }
    goes_on = spec.replace(**{**changes, **begin, "rounds_before": done})
    if goes_on.meet != each:
        if done % each or goes_on.meet == "auto":
            accepted = f"must be {each}, because {experiment} trained with {each} rounds per epoch"
            raise SpecError("meet", goes_on.meet, accepted)
        goes_on = goes_on.replace(rounds_before=epochs_done * goes_on.meetings.each)
    _refuse_spent_patience(experiment, goes_on, folder / versions[last], last)
    return goes_on


def _refuse_spent_patience(experiment: str, spec: Spec, model: Path, version: int) -> None:
    """Refuse to continue an experiment that `stop_after` would end at once."""
    if spec.stop_after is None:
        return
    before = best_before(spec, model, version)
    since = before.epochs_since(spec) if before is not None else 0
    if since >= spec.stop_after:
        accepted = f"{experiment} ended with {since} epochs without a better model; set a larger"
        raise SpecError("stop_after", spec.stop_after, f"{accepted} number to go on")
