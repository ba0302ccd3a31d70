"""Plays a demo: chooses its data, trains its acts one after the other, and reads their results.

It downloads nothing. The data are scikit-learn's digits, or random clouds of points if scikit-learn
is not installed. A file next to the results stores the clouds, so that a command line can use them
again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from downpour.base.errors import SpecError
from downpour.experiments.client import OnStatus
from downpour.experiments.demos.demo import Act, Acted
from downpour.experiments.reading.study_result import read_run
from downpour.experiments.running.surroundings import Surroundings
from downpour.experiments.running.training import train
from downpour.experiments.running.watching import Watching
from downpour.files.records.record import read_record
from downpour.files.store.layout import RECORD_NAME
from downpour.host.extras import is_installed

CLOUDS_NAME = "clouds.npz"
_CLASSES = 10
_SIDE = 8
_TRAIN, _TEST = 1440, 360
_NOISE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStage:
    """Plays acts in a shared directory; `changes` replace fields of their specs."""

    shared: Path
    changes: Mapping[str, Any]

    def play(self, act: Act, on_status: OnStatus) -> Acted:
        """Train an act to its end.

        Raises:
            ExperimentFailed: training ended without a model.
            LaunchError: a process could not be started.
        """
        spec = act.spec(self.changes)
        place = replace(Surroundings.of(self.shared), disturbances=act.disturbances)
        began = time.monotonic()
        result = train(spec, act.workers, place, Watching(on_status=on_status, progress=False))
        wall_seconds = time.monotonic() - began
        folder = place.shared / "experiments" / result.experiment
        return Acted(
            act=act,
            spec=spec,
            run=read_run(folder),
            record=read_record(folder / RECORD_NAME),
            shared=place.shared,
            wall_seconds=wall_seconds,
        )


def data_in(folder: Path) -> dict[str, Any]:
    """Return the spec fields that name a demo's data; write the data to a folder if needed.

    Raises:
        SpecError: the folder cannot be written.
    """
    if is_installed("sklearn"):
        return {}
    path = folder / CLOUDS_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(path, **clouds())
    except OSError as error:
        raise SpecError("to", str(folder), f"cannot be written ({error.strerror})") from None
    return {"dataset": "npz", "data_path": str(path), "model": "mlp"}


def clouds() -> dict[str, Any]:
    """Return images of 8 x 8 pixels in 10 classes: a random center per class, plus noise.

    Returns:
        Training images `x`, uint8 of shape (1440, 8, 8), with labels `y`. Test images `x_test` of
        shape (360, 8, 8), with labels `y_test`.
    """
    random = np.random.default_rng(0)
    centers = random.uniform(64, 192, (_CLASSES, _SIDE, _SIDE))

    def drawn(count: int) -> tuple[Any, Any]:
        labels = np.arange(count) % _CLASSES
        noisy = centers[labels] + random.normal(0, _NOISE, (count, _SIDE, _SIDE))
        return np.clip(noisy, 0, 255).astype(np.uint8), labels.astype(np.int64)

    x, y = drawn(_TRAIN)
    x_test, y_test = drawn(_TEST)
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}
