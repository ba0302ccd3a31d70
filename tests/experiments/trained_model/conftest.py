"""Two runs for all: of the built-in task, and of a task that `downpour init` has written."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import downpour
from downpour.cli.starting import write_template
from downpour.experiments.locating import TrainedModel, find
from downpour.experiments.trained_model import data_key
from downpour.learning.allowlist import FOLDERS, VARIABLE, allow_in
from downpour.learning.datasets import open_prepared

SPEC = downpour.Spec(
    meet=1,
    optimizer_state="reset",
    name="early",
    shards=2,
    epochs=2,
    train_limit=400,
    test_limit=100,
    keep_models=3,
)


def run_here(spec: downpour.Spec, shared: Path) -> downpour.Result:
    """Run a spec in this process."""
    return downpour.run(spec, workers=1, shared=shared, progress=False, on="inline")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shared directory for all, as a user would keep one."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def result(shared: Path) -> downpour.Result:
    """A run of two epochs."""
    return run_here(SPEC, shared)


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a task of the user's, `regression:Regression`."""
    folder = tmp_path_factory.mktemp("project")
    write_template("regression", folder)
    return folder


@pytest.fixture
def allowed(code: Path) -> Iterator[None]:
    """Let this machine import it, and forget that afterwards."""
    with pytest.MonkeyPatch.context() as patched:
        for variable in (VARIABLE, FOLDERS):
            patched.setenv(variable, os.environ.get(variable, ""))
        allow_in([code], ["regression"])
        yield


@pytest.fixture(scope="session")
def own(shared: Path, code: Path) -> downpour.Result:
    """A run of four rounds of that task, with a schedule."""
    spec = downpour.Spec(
        task="regression:Regression",
        task_options={"rows": 200, "width": 4},
        shards=2,
        epochs=4,
        optimizer="adam",
        learning_rate=0.01,
        schedule="cosine",
        keep_models=5,
    )
    with pytest.MonkeyPatch.context() as patched:
        for variable in (VARIABLE, FOLDERS):
            patched.setenv(variable, "")
        allow_in([code], ["regression"])
        return downpour.run(spec, workers=2, shared=shared, progress=False, on="inline")


@pytest.fixture
def trained(result: downpour.Result, shared: Path) -> TrainedModel:
    """The built-in model."""
    return find(result, shared)


@pytest.fixture
def digits(trained: TrainedModel) -> tuple[Any, Any]:
    """Its own test examples and their classes, as plain arrays."""
    test = open_prepared(trained.data_root, data_key(trained)).test
    return np.array(test.x), np.array(test.y)
