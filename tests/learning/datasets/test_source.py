"""What every source has in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import SOURCES, check_source


def test_an_unknown_dataset_is_refused_by_naming_the_known() -> None:
    """The line lists every source."""
    with pytest.raises(SpecError) as refusal:
        check_source(Spec.make({"dataset": "minst"}))
    assert all(name in str(refusal.value) for name in SOURCES)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"npz", "folder"}))
def test_well_known_sets_pass_the_cheap_check_without_their_files(name: str) -> None:
    """A download may still help; but options they do not have are refused."""
    check_source(Spec.make({"dataset": name}))
    with pytest.raises(SpecError, match="only a factory has options"):
        check_source(Spec.make({"dataset": name, "dataset_options": {"a": 1}}))


def test_importing_the_datasets_brings_no_heavy_package() -> None:
    """torch, torchvision, scikit-learn and Pillow come only when they are needed."""
    code = "import sys, downpour.learning.datasets; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "torchvision", "sklearn", "PIL"} & set(done.stdout.split())


def test_a_data_folder_that_is_not_there_is_seen_before_anything_starts(tmp_path: Path) -> None:
    """A mistyped --data-dir is not answered by a download."""
    with pytest.raises(SpecError, match="data_dir"):
        check_source(Spec.make({"dataset": "mnist"}), tmp_path / "nowhere")


@pytest.mark.parametrize("dataset", ["npz", "folder"])
@pytest.mark.parametrize("path", ["a" * 5_000, "a/" * 2_500, "a\0b", "~nobody/x", "/proc/1/root/x"])
def test_a_path_that_cannot_be_is_refused_in_one_short_line(
    tmp_path: Path, dataset: str, path: str
) -> None:
    """For every error of the file system; a long value is shortened."""
    spec = Spec.make({"dataset": dataset, "data_path": path})
    for data_dir in (None, tmp_path):
        with pytest.raises(SpecError) as refusal:
            check_source(spec, data_dir)
        assert refusal.value.field == "data_path"
        assert len(str(refusal.value)) < 200


def test_a_data_folder_of_an_impossible_name_is_refused() -> None:
    """As one that is not there."""
    for name in ("a" * 5_000, "a\0b"):
        with pytest.raises(SpecError, match="no such folder"):
            check_source(Spec.make({}), Path(name))
