"""Features by name become rows, and a predictor's file is read as written, or refused."""

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from downpour.base.errors import SpecError
from downpour.predictor import features as f
from downpour.predictor.features import Features
from downpour.predictor.learned import FORMAT, VERSION, Trained, read_trained, write_trained


def refusal(path: Path) -> str:
    """Return the line with which a file is refused."""
    with pytest.raises(SpecError) as caught:
        read_trained(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_a_written_model_is_read_again(trained: Trained, tmp_path: Path) -> None:
    """Up to half precision of the large arrays; the same content gives the same bytes."""
    one, other = tmp_path / "one", tmp_path / "other"
    assert write_trained(one, trained) == one.stat().st_size
    read = read_trained(one)
    assert read.traces == trained.traces
    for name, array in trained.lstm.items():
        assert read.lstm[name] == pytest.approx(array, rel=1e-3, abs=1e-6)
    write_trained(other, read)
    assert one.read_bytes() == other.read_bytes()


def test_damaged_files_are_refused_in_one_line(trained: Trained, tmp_path: Path) -> None:
    """Missing, cut anywhere, or something else altogether."""
    path = tmp_path / "p"
    assert "cannot be read (No such file" in refusal(path)
    write_trained(path, trained)
    whole = path.read_bytes()
    for length in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "is not a parameter file" in refusal(path)
    path.write_text("hello")
    assert "is not a parameter file" in refusal(path)


def test_files_of_other_versions_and_for_other_inputs_are_refused(
    trained: Trained, tmp_path: Path
) -> None:
    """The line says which version there is and which is accepted."""
    path = tmp_path / "p"
    write_trained(path, trained)
    tensors = load_file(path)
    save_file(tensors, path, {"format": FORMAT, "version": "99"})
    assert f"has version 99, but must have {VERSION}" in refusal(path)
    save_file(tensors, path, {"version": VERSION})
    assert "is not a predictor's file" in refusal(path)
    meta = {"format": FORMAT, "version": VERSION}
    save_file(tensors | {"lstm.inputs.center": np.zeros(7, np.float32)}, path, meta)
    assert "does not hold the nets" in refusal(path)
    save_file({n: a for n, a in tensors.items() if n != "ridge.spread"}, path, meta)
    assert "does not hold the ridge" in refusal(path)
    bias = tensors["lstm.assigned.out_bias"] * np.nan
    save_file(tensors | {"lstm.assigned.out_bias": bias}, path, meta)
    assert "weights that are not finite" in refusal(path)


def test_an_unwritable_path_is_named(trained: Trained, tmp_path: Path) -> None:
    """A folder that is not there."""
    with pytest.raises(SpecError, match="cannot be written"):
        write_trained(tmp_path / "none" / "p", trained)


def row(told: Features) -> list[float]:
    """Return the row of one task."""
    found: list[float] = f.task_rows([told])[0].tolist()
    return found


def test_the_latest_report_counts_and_the_one_before_is_kept() -> None:
    """In any order, and with unknown names among them."""
    found = row(
        {
            "p50_elapsed_s": 6.0,
            "p10_elapsed_s": 1.0,
            "p50_cpu_util": 0.5,
            "n_samples": 64,
            "p25_elapsed_s": 3.0,
            "cpu_util": 0.1,
            "job": 7,
            "p5x_elapsed_s": 9.0,
            "p25_color": 9.0,
        }
    )
    assert found[f.SAMPLES] == 64
    assert (found[f.SHARE], found[f.SECONDS]) == (0.5, 6.0)
    assert (found[f.SHARE_BEFORE], found[f.SECONDS_BEFORE]) == (0.25, 3.0)
    assert found[f.NOW][0] == 0.5
    assert found[f.DURING][0] == pytest.approx(0.3)
    assert math.isnan(found[f.ASSIGNED][1])


def test_an_impossible_value_counts_as_missing() -> None:
    """Negative, infinite, and reports that are earlier than the one before them."""
    found = row(
        {"n_samples": -1.0, "cpu_util": math.inf, "p10_elapsed_s": 5.0, "p25_elapsed_s": 4.0}
    )
    assert math.isnan(found[f.SAMPLES])
    assert math.isnan(found[f.ASSIGNED][0])
    assert (found[f.SHARE], found[f.SECONDS]) == (0.1, 5.0)


def test_batches_stand_in_for_samples() -> None:
    """A batch has 32 of them."""
    assert row({"batches": 3.0})[f.SAMPLES] == 96
    assert row({"batches": 3.0, "n_samples": 70.0})[f.SAMPLES] == 70


def test_tasks_told_by_different_names_are_read_together() -> None:
    """Each gets its own row, in order."""
    told: list[Features] = [{"n_samples": 1.0}, {"batches": 1.0}, {"n_samples": 2.0}, {}]
    assert np.array_equal(f.task_rows(told)[:, f.SAMPLES], [1, 32, 2, math.nan], equal_nan=True)
