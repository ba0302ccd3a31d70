"""A manager puts the code of a spec's factories beside the spec, for workers that lack it."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from downpour.base.states import ExperimentState
from downpour.core.spec import ResolvedSpec
from downpour.files.store import layout
from downpour.learning.shipping import PACKED_BYTES_MAX, Bundle
from tests.conftest import Allow
from tests.learning.shipping.conftest import forget_modules, written
from tests.specs import plain_spec

NETWORK = b"""
from shipped_helpers import flat
from torch import nn
def build(num_classes, sample_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(sample_shape), num_classes))
"""
HELPERS = b"def flat(shape):\n    return shape[1] * shape[2]\n"
PROJECT = {"shipped_lab.py": NETWORK, "shipped_helpers.py": HELPERS}
MODEL = "shipped_lab:build"


@pytest.fixture
def project(tmp_path: Path, allowing: Allow) -> Path:
    """A project that this process has not imported."""
    forget_modules()
    folder = written(tmp_path / "project", PROJECT)
    allowing(folder, "shipped_lab")
    return folder


def spec_of(cluster: Any, experiment: str) -> ResolvedSpec:
    """Return what the spec's file says."""
    file = cluster.shared.experiment_path(experiment) / layout.SPEC_NAME
    return ResolvedSpec.from_toml(file.read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_the_code_lies_in_the_experiments_folder_to_its_end_and_after(cluster: Any) -> None:
    """Named by the spec, with the versions of packages; a repeated request is the same one."""
    cluster.join("one")
    asked = cluster.client.submit
    text = plain_spec(shards=2, model=MODEL, epochs=1).to_toml()
    experiment = asked(text, "abcd")
    assert asked(text, "abcd") == experiment
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
    spec = spec_of(cluster, experiment)
    assert spec.packages == {"torch": torch.__version__.partition("+")[0]}
    assert spec.code_bundle is not None
    packed = cluster.shared.store(experiment).read_unchecked(
        layout.bundle_name(spec.code_bundle), limit_bytes=PACKED_BYTES_MAX
    )
    assert dict(Bundle.unpacked(packed, spec.code_bundle).files) == PROJECT


def test_our_own_networks_need_none(cluster: Any) -> None:
    """The spec's file says nothing of it, whatever was asked for: it is as before."""
    experiment = cluster.submit(code_bundle="a" * 64, packages={"torch": "0.1"})
    text = (cluster.shared.experiment_path(experiment) / layout.SPEC_NAME).read_text()
    assert "code_bundle" not in text
    assert "packages" not in text
    assert not [name for name in cluster.shared.store(experiment).list() if "code-" in name]


@pytest.mark.slow
def test_a_project_that_cannot_be_shipped_is_trained_and_the_log_says_why(
    cluster: Any, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line; workers that have the files train as ever."""
    written(project, {"shipped_helpers.py": b"# coding: latin-1\n# \xe9\n" + HELPERS})
    cluster.join("one")
    with caplog.at_level(logging.WARNING):
        experiment = cluster.submit(model=MODEL, name="foreign")
    why = "cannot ship the code of foreign to workers: shipped_helpers.py is not UTF-8"
    assert why in caplog.messages
    assert spec_of(cluster, experiment).code_bundle is None
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
