"""The tasks under examples/tasks/, in sizes that train in a second."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from downpour import Spec
from downpour.base.errors import is_installed
from downpour.core.resolve import resolve
from downpour.files.spec_file import read_spec
from downpour.learning.allowlist import VARIABLE
from tests.learning.datasets.conftest import write_idx

FOLDER = Path(__file__).parents[2] / "examples" / "tasks"

SMALL: dict[str, dict[str, Any]] = {
    "char_gpt": {"sentences": 60, "block": 16, "width": 16, "heads": 2, "layers": 1},
    "diabetes": {},
    "hub_digits": {},
    "lora_gpt2": {"sentences": 60, "block": 16, "width": 16, "heads": 2, "layers": 1, "rank": 2},
    "mnist": {},
    "resnet18": {},
    "shapes": {"count": 60, "size": 16, "width": 4},
    "vae": {"hidden": 32, "codes": 4},
    "word_lstm": {"sentences": 60, "block": 8, "width": 16},
}
"""Options of each example's task; fields are below."""

FEW: dict[str, Any] = {"epochs": 2, "batch_size": 8, "local_steps": 3, "test_limit": 20}


@dataclass(frozen=True, slots=True)
class Example:
    """A task that ships: its files, and its spec in a small size."""

    name: str

    @property
    def code(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def whole(self) -> Spec:
        return read_spec(self.code.with_suffix(".toml"))

    @property
    def small(self) -> Spec:
        """The spec with a small network, and a few steps on a few examples."""
        return resolve(self.whole.replace(task_options=SMALL[self.name], **FEW), None)


def examples_here(monkeypatch: pytest.MonkeyPatch, data: Path) -> list[Example]:
    """Let this process and its children import the examples; return those whose needs are met."""
    monkeypatch.setenv(VARIABLE, ",".join(SMALL))
    monkeypatch.setenv("DOWNPOUR_DATA", str(data))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
    if str(FOLDER) not in sys.path:
        monkeypatch.syspath_prepend(str(FOLDER))
    has_lora = is_installed("transformers") and is_installed("peft")
    return [Example(name) for name in sorted(SMALL) if name != "lora_gpt2" or has_lora]


@pytest.fixture(params=sorted(SMALL))
def example(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, small_mnist: Path
) -> Example:
    """Each example."""
    found = Example(request.param)
    if found not in examples_here(monkeypatch, small_mnist):
        pytest.skip("needs transformers and peft: the extra lora")
    return found


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small MNIST look-alike."""
    folder = tmp_path_factory.mktemp("data")
    write_idx(folder / "MNIST", count=100)
    return folder
