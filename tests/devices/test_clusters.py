"""Real processes on a real accelerator, from the command to the model file."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import downpour
from downpour.base.errors import DownpourError
from downpour.cluster.options import ManagerOptions
from downpour.experiments.locating import find
from downpour.experiments.trained_model import predict
from downpour.launchers import LaunchPlan, LocalCluster
from downpour.record.result_parts import mixture_of
from downpour.show.tables.live import status_view
from tests.show.terminal import rendered
from tests.specs import model_of
from tests.waiting import until

from .conftest import numbered

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "downpour"]
PATIENCE_SECONDS = 100.0
SPEC = downpour.Spec(
    model="mnist-cnn", shards=4, epochs=3, optimizer="adam", learning_rate=0.003, seed=7
)


def trained(device: str, shared: Path, workers: int = 2, on: str = "local") -> downpour.Result:
    """Train the digits with workers of this machine."""
    spec = SPEC.replace(device=device)
    return downpour.run(spec, workers=workers, shared=shared, progress=False, on=on)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shared directory for all."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def result(device: str, shared: Path) -> downpour.Result:
    """A run with two workers on the accelerator."""
    return trained(device, shared)


def test_a_run_learns_and_says_where_it_was_trained(result: downpour.Result, device: str) -> None:
    """All workers are of one class, of the device's kind, so the result warns of no mixture."""
    assert result.accuracy is not None
    assert result.accuracy > 0.5
    [its] = result.numeric_classes
    assert f" on {device} (" in its
    assert mixture_of(result.numeric_classes) == ""


@pytest.mark.parametrize(
    ("workers", "on", "named"),
    [
        (1, "local", ""),
        (3, "local", ""),
        (2, "inline", ""),
        (2, "local", ":0"),
        (2, "local", "auto"),
    ],
)
def test_the_model_does_not_depend_on_who_trains_what(
    result: downpour.Result, device: str, tmp_path: Path, workers: int, on: str, named: str
) -> None:
    """Other numbers of workers, as processes or as threads, and names of the device: same bytes."""
    if named == ":0" and not numbered(device):
        pytest.skip(f"there is one {device}")
    asked = named if named == "auto" else f"{device}{named}"
    assert model_of(trained(asked, tmp_path, workers, on)) == model_of(result)


def test_the_processor_is_another_class(
    result: downpour.Result, device: str, tmp_path: Path
) -> None:
    """It learns as well, to other bytes, also by a worker that has the accelerator."""
    on_cpu = trained("cpu", tmp_path)
    assert on_cpu.accuracy == pytest.approx(result.accuracy, abs=0.25)
    assert model_of(on_cpu) != model_of(result)
    with (
        LocalCluster(
            LaunchPlan(ManagerOptions(shared=str(tmp_path), port=0), workers=0)
        ) as cluster,
        worker_on(device, cluster.address, tmp_path),
        downpour.Client(cluster.address, shared=tmp_path) as client,
    ):
        by_accelerator = client.wait(client.submit(SPEC))
    assert model_of(by_accelerator) == model_of(on_cpu)
    assert mixture_of(by_accelerator.numeric_classes) == ""


@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_device_that_is_not_here_is_refused_in_one_line(
    device: str, tmp_path: Path, command: str
) -> None:
    """It says which there are; status 2, no traceback."""
    asked = f"{device}:99" if numbered(device) else "cuda"
    words = [*COMMAND, command, "--device", asked, "--shared", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_SECONDS)  # noqa: PLW1510
    said = [line for line in done.stderr.splitlines() if "torch finds no such device" in line]
    assert done.returncode == 2, done.stderr
    assert len(said) == 1
    assert f"device = '{asked}': torch finds no such device here, only cpu, {device}" in said[0]
    assert "Traceback" not in done.stderr


@contextmanager
def worker_on(device: str, manager: str, shared: Path) -> Iterator[None]:
    """Run a worker on a device, as a person starts one."""
    words = [*COMMAND, "worker", "--manager", manager, "--shared", str(shared)]
    with subprocess.Popen([*words, "--device", device, "--name", "other"]) as process:
        try:
            yield
        finally:
            process.terminate()


def test_a_mixture_trains_and_is_shown(device: str, tmp_path: Path) -> None:
    """A worker on the processor and one on the accelerator share an experiment of `auto`."""
    options = ManagerOptions(shared=str(tmp_path), port=0)
    with (
        LocalCluster(LaunchPlan(options, workers=1)) as cluster,
        worker_on(device, cluster.address, tmp_path),
        downpour.Client(cluster.address, shared=tmp_path) as client,
    ):
        until(lambda: len(client.status().workers) == 2)
        status = client.status()
        assert sorted(one.device for one in status.workers) == sorted(["cpu", device])
        mixed = client.wait(client.submit(SPEC.replace(device="auto", shards=8, epochs=3)))
    shown = rendered(status_view(status), width=5000)
    assert "not all compute alike" in shown
    assert f" on {device} (" in shown
    assert mixed.accuracy is not None
    assert mixed.accuracy > 0.3
    kinds = {name.split(" on ")[1].split(" (")[0] for name in mixed.numeric_classes}
    assert kinds == {"cpu", device}
    assert "not all compute alike" in mixture_of(mixed.numeric_classes)


def test_a_trained_model_predicts_on_the_accelerator_and_on_the_processor(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """The same classes; the model that others get is on the processor."""
    assert result.model_file is not None
    images = np.random.default_rng(1).integers(0, 17, (50, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=images)
    model = find(result, shared)
    there = predict(model, str(tmp_path / "x.npz"))
    on_cpu = replace(model, spec=model.spec.replace(device="cpu"))
    here = predict(on_cpu, str(tmp_path / "x.npz"))
    assert sum(a["class"] == b["class"] for a, b in zip(there, here, strict=True)) >= 48
    network = downpour.load_model(result, shared=shared)
    assert {one.device.type for one in network.parameters()} == {"cpu"}


def test_a_replay_on_the_same_card_finds_the_same_bytes(
    result: downpour.Result, shared: Path
) -> None:
    """Every update and every version."""
    again = downpour.replay(result, shared=shared)
    assert again.difference is None
    assert again.compared > 8


def test_a_step_that_never_fits_fails_with_what_to_change(
    device: str, numbers: Path, tmp_path: Path
) -> None:
    """A layer whose output is of 128 GiB: one line, and the run is over."""
    if device == "mps":
        pytest.skip("its memory is that of the whole machine")
    spec = downpour.Spec.make(
        {
            "dataset": "npz",
            "data_path": str(numbers),
            "model": "mlp",
            "model_options": {"hidden": [1 << 22, 8]},
            "batch_size": 8192,
            "shards": 1,
            "epochs": 1,
            "device": device,
        }
    )
    with pytest.raises(DownpourError) as failed:
        downpour.run(spec, workers=1, shared=tmp_path, progress=False)
    assert "out of memory" in str(failed.value).lower()
    assert "accumulate = 2 for smaller parts" in str(failed.value)
