"""`downpour init`: a project that trains at once, and nothing that was there is lost."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour import load_model
from downpour.cli.starting import TEMPLATES
from downpour.files.spec_file import read_toml
from tests.cli.conftest import Downpour

pytestmark = pytest.mark.usefixtures("forked_clusters")

LINES_MAX = 40


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_a_task_its_spec_and_how_to_run_it(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """The commands that train it are printed; the task is short."""
    monkeypatch.chdir(tmp_path)
    outcome = downpour("init", "--template", template)
    module = template.replace("-", "_")
    commands = f"cd {template}\ndownpour run\n"
    assert (outcome.status, outcome.out, outcome.err) == (0, commands, "")
    folder = tmp_path / template
    assert {path.name for path in folder.iterdir()} == {f"{module}.py", "spec.toml", "README.md"}
    assert str(read_toml(folder / "spec.toml")["task"]).startswith(f"{module}:")
    assert "    downpour run\n" in (folder / "README.md").read_text()
    lines = (folder / f"{module}.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= LINES_MAX


def test_missing_packages_are_installed_first(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a template needs packages, its README names them, and a command installs them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    outcome = downpour("init", "--template", "lora")
    assert outcome.out == "pip install transformers peft\ncd lora\ndownpour run\n"
    readme = (tmp_path / "lora" / "README.md").read_text()
    assert "on this machine once transformers and peft are installed." in readme


@pytest.mark.parametrize(
    ("others", "printed"),
    [([], "downpour run"), (["more.toml"], "downpour run spec.toml"), (["x.txt"], "downpour run")],
)
def test_a_folder_may_have_files_already(
    downpour: Downpour,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: list[str],
    printed: str,
) -> None:
    """They stay; where one of them is a spec, too, the command says which is meant."""
    monkeypatch.chdir(tmp_path)
    for name in others:
        (tmp_path / name).write_text("epochs = 3\n")
    outcome = downpour("init", ".")
    assert (outcome.status, outcome.out) == (0, f"{printed}\n")
    for name in others:
        assert (tmp_path / name).read_text() == "epochs = 3\n"


def test_nothing_is_overwritten(refused: Callable[..., str], tmp_path: Path) -> None:
    """One file of the same name is enough to refuse, and then none is written."""
    (tmp_path / "spec.toml").write_text("mine")
    line = refused("init", tmp_path)
    assert line.endswith(
        "already has spec.toml, and this command never overwrites files; choose another folder"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["spec.toml"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_trains_at_once_and_its_model_is_of_use(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """By the commands that were printed, on fewer examples; then by those of its README."""
    if template == "lora":
        for package in ("transformers", "peft"):
            pytest.importorskip(package, reason=f"{package} is not installed")
    module = template.replace("-", "_")
    # As in a process of its own, which has no other test's module of that name.
    monkeypatch.delitem(sys.modules, module, raising=False)
    elsewhere = [folder for folder in sys.path if Path(folder, f"{module}.py").is_file()]
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in elsewhere])
    monkeypatch.chdir(tmp_path)
    assert downpour("init", "mine", "--template", template).out == "cd mine\ndownpour run\n"
    monkeypatch.chdir("mine")
    brief = ("--epochs", 1, "--train-limit", 64, "--test-limit", 16, "--workers", 1)
    outcome = downpour("run", *brief, "--json")
    assert outcome.status == 0, outcome
    trained = json.loads(outcome.out)
    [epoch] = trained["rounds"]
    assert epoch["test_loss"] > 0
    name, allowed = trained["experiment"], ("--allow", module)
    measured = downpour("evaluate", name, *allowed, "--json")
    assert measured.status == 0, measured
    assert json.loads(measured.out)["loss"] == pytest.approx(epoch["test_loss"], rel=1e-6)
    predicted = downpour("predict", name, "test", *allowed, "--json")
    assert predicted.status == 0, predicted
    assert len(json.loads(predicted.out)) >= 16
    exported = downpour("export", name, "--to", "model", *allowed)
    assert exported.status == 0, exported
    assert Path("model/model.safetensors").is_file()
    assert load_model(name, shared="shared_dir").training is False
