"""What needs an optional library says so in one line, and everything else runs without any."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import EXTRAS, MissingPackage, is_installed, require

PROJECT = Path(__file__).parents[2]
HIDDEN = sorted({module for modules in EXTRAS.values() for module in modules})
# Found by Python before anything else is imported, in every process that inherits the environment.
HIDES = f"""
import sys
from importlib.machinery import PathFinder

class Hides:
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hides
"""
SPEC = """
dataset = "npz"
data_path = "{data}"
model = "mlp"
shards = 2
epochs = 2
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which no optional library can be imported, by any process."""
    folder = tmp_path / "hides"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDES)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def command(
    bare: dict[str, str], *words: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command where no optional library is installed."""
    line = [sys.executable, "-m", "downpour", *map(str, words)]
    return subprocess.run(line, env=bare, cwd=cwd, capture_output=True, text=True, check=False)


def spec_file(folder: Path) -> Path:
    """Write a spec that trains on 64 examples of the user's own."""
    generator = np.random.default_rng(0)
    data: dict[str, Any] = {
        "train_images": generator.normal(size=(64, 8)).astype(np.float32),
        "train_labels": np.arange(64) % 2,
        "test_images": generator.normal(size=(16, 8)).astype(np.float32),
        "test_labels": np.arange(16) % 2,
    }
    np.savez(folder / "data.npz", **data)
    file = folder / "spec.toml"
    file.write_text(SPEC.format(data=folder / "data.npz"))
    return file


ENGINES = ("ray",)
"""What those alone install who have such a cluster: hundreds of megabytes."""
LOGGERS = ("mlflow", "trackio", "wandb")
"""What those alone install who keep their experiments there. Of them `dev` has those that need
neither minutes nor older versions of other packages."""


def test_the_extras_are_those_of_the_installation() -> None:
    """The line that a user sees names what `pip` knows; `all` is what one machine needs."""
    told = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = {
        name: sorted(re.split(r"[>=]", package)[0] for package in packages)
        for name, packages in told["optional-dependencies"].items()
    }
    on_one_machine = [name for name in EXTRAS if name not in {*ENGINES, *LOGGERS}]
    assert f"downpour-sgd[{','.join(on_one_machine)}]" in extras.pop("all")
    assert f"downpour-sgd[all,lora,mlflow,{','.join(ENGINES)},wandb]" in extras.pop("dev")
    extras.pop("lora")  # an example's
    assert extras == {name: sorted(modules.values()) for name, modules in EXTRAS.items()}


@pytest.mark.parametrize(("extra", "module"), [(e, m) for e in EXTRAS for m in EXTRAS[e]])
def test_one_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: str, module: str
) -> None:
    """Whichever it is, with the extra that brings it; what is there is not refused."""
    if extra == "trackio" and not is_installed(module):
        pytest.skip("trackio is not installed")
    require("this", extra)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage) as caught:
        require("this", extra)
    assert str(caught.value) == f"this needs {EXTRAS[extra][module]}; install downpour-sgd[{extra}]"
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("certs host", "downpour certs needs cryptography; install downpour-sgd[certs]"),
        ("tune {file}", "downpour tune needs optuna; install downpour-sgd[tune]"),
        ("grid {file}", "downpour grid needs jinja2; install downpour-sgd[report]"),
        ("report {file}", "downpour report needs jinja2; install downpour-sgd[report]"),
        (
            "compare-policies {file}",
            "downpour compare-policies needs jinja2; install downpour-sgd[report]",
        ),
        (
            "predictor score {file}",
            "downpour predictor score needs scikit-learn; install downpour-sgd[predictor]",
        ),
        ("dashboard {folder}", "downpour dashboard needs h11; install downpour-sgd[dashboard]"),
        (
            "manager --shared {folder} --dashboard",
            "--dashboard needs h11; install downpour-sgd[dashboard]",
        ),
        (
            "run {file} --shared {folder}/new --dashboard-port 0",
            "--dashboard needs h11; install downpour-sgd[dashboard]",
        ),
        (
            "manager --shared {folder} --metrics-port 0",
            "--metrics-port needs prometheus-client; install downpour-sgd[metrics]",
        ),
        (
            "worker --manager localhost:1 --shared {folder} --metrics-port 0",
            "--metrics-port needs prometheus-client; install downpour-sgd[metrics]",
        ),
        (
            "run --shared {folder}/new --dataset digits",
            "dataset = 'digits': needs scikit-learn; install downpour-sgd[digits]",
        ),
        (
            "run {file} --shared {folder}/new --tensorboard {folder}/runs",
            "writing event files needs tensorboard; install downpour-sgd[tensorboard]",
        ),
        *(
            (
                f"run {{file}} --shared {{folder}}/new --log {name}",
                f"--log {name} needs {package}; install downpour-sgd[{name}]",
            )
            for name, package in (
                ("mlflow", "mlflow-skinny"),
                ("wandb", "wandb"),
                ("trackio", "trackio"),
            )
        ),
    ],
)
def test_a_command_without_its_library_is_one_line(
    bare: dict[str, str], tmp_path: Path, words: str, line: str
) -> None:
    """With exit status 2, before anything was changed."""
    file = spec_file(tmp_path)
    before = sorted(tmp_path.iterdir())
    outcome = command(bare, *(w.format(file=file, folder=tmp_path) for w in words.split()))
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert outcome.stderr == f"downpour: {line}\n"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_a_demo_makes_do_with_data_of_its_own_and_without_a_figure(
    bare: dict[str, str], tmp_path: Path
) -> None:
    """The table is there, and a line says what is missing for the figure."""
    outcome = command(bare, "demo", "splits", "--epochs", 2, cwd=tmp_path)
    assert outcome.returncode == 0, outcome
    said = "the figure of downpour demo needs jinja2; install downpour-sgd[report]"
    assert said in outcome.stderr
    assert "Notice: " in outcome.stdout
    assert "Figure: " not in outcome.stdout
    assert "--data-path=results/clouds.npz" in outcome.stdout


@pytest.mark.slow
def test_the_package_imports_without_any_of_them(bare: dict[str, str]) -> None:
    """All but those that make certificates, and the simulator; the libraries really are hidden."""
    code = (
        "import downpour, downpour.cli.commands, downpour.cluster.manager.process,"
        " downpour.cluster.worker.process, downpour.show.report,"
        " downpour_lab.fitting.scoring, downpour_lab.inside.hybrid, downpour.learning.datasets,"
        " downpour.learning.models"
    )
    subprocess.run([sys.executable, "-c", code], env=bare, check=True)
    words = [sys.executable, "-c", "import scipy"]
    hidden = subprocess.run(words, env=bare, capture_output=True, check=False)
    assert b"No module named 'scipy'" in hidden.stderr


@pytest.mark.slow
def test_a_run_needs_none_of_them(bare: dict[str, str], tmp_path: Path) -> None:
    """Manager, workers, training and the results."""
    shared = tmp_path / "shared"
    ran = command(bare, "run", spec_file(tmp_path), "--shared", shared, "--workers", 2)
    assert ran.returncode == 0, ran.stderr
    name = next((shared / "experiments").iterdir()).name
    told = command(bare, "results", name, "--shared", shared)
    assert told.returncode == 0, told.stderr


@contextmanager
def serving(bare: dict[str, str], *words: object) -> Iterator[str]:
    """A process that serves until the block ends; yields its first line, with its address."""
    line = [sys.executable, "-m", "downpour", *map(str, words)]
    with subprocess.Popen(line, env=bare, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline()
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_manager_and_a_worker_need_none_of_them(bare: dict[str, str], tmp_path: Path) -> None:
    """An experiment that is submitted to them comes to its end."""
    shared, file = tmp_path / "shared", spec_file(tmp_path)
    with serving(bare, "manager", "--shared", shared, "--port", 0) as line:
        manager = line.removeprefix("manager at ").partition(",")[0]
        with serving(bare, "worker", "--shared", shared, "--manager", manager):
            done = command(bare, "submit", file, "--manager", manager, "--watch")
    assert done.returncode == 0, done.stderr
