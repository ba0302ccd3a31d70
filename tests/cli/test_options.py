"""Options that commands share, the manager they call, and that a check changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from downpour.base import VERSION
from downpour.base.errors import SpecError
from downpour.base.options import option
from downpour.base.values import DEFAULT_MANAGER, DEFAULT_PORT
from downpour.cli.common import Values, command
from downpour.cli.spec_options import AskedSpec, find_spec, parse_fields
from downpour.core.spec import Spec
from downpour.core.spec_fields import Option
from downpour.network.rpc import parse_address, serve_worker
from downpour.network.rpc.messages import WorkerInfo
from tests.cli.addresses import matrix, why_not
from tests.cli.conftest import Downpour, Served, downpour, own_signals
from tests.files.objects import lab


def test_the_default_manager_is_at_the_default_port() -> None:
    """A manager and a worker on one machine find each other without options."""
    assert str(parse_address("localhost")) == DEFAULT_MANAGER
    assert parse_address(DEFAULT_MANAGER).port == DEFAULT_PORT


@dataclass(frozen=True, kw_only=True)
class More:
    """An option beside those of a spec."""

    extra: str = option("", "More.", "TEXT")


def test_options_override_the_file(tmp_path: Path) -> None:
    """What was typed wins, field by field, and the rest stays."""
    seen: list[tuple[Spec, str]] = []

    @command
    def train(more: More, asked: AskedSpec) -> None:
        seen.append((asked.spec, more.extra))

    app = typer.Typer()
    app.command()(train)
    file = tmp_path / "spec.toml"
    file.write_text("epochs = 7\nlearning_rate = 0.5\nflip = true\n")
    words = [str(file), "--epochs", "9", "--no-flip", "--extra", "more"]
    words += ["--model-options", "dropout=0.5", "--model-options", "hidden=[8, 8]"]
    app(words, standalone_mode=False)
    asked: dict[str, Option] = {"dropout": 0.5, "hidden": [8, 8]}
    expected = Spec(epochs=9, learning_rate=0.5, flip=False, model_options=asked)
    assert seen == [(expected, "more")]


@pytest.mark.parametrize(
    ("field", "typed", "value"),
    [
        ("name", "7", "7"),
        ("shards", "4", 4),
        ("learning_rate", "1e-3", 1e-3),
        ("betas", "0.8,0.9", [0.8, 0.9]),
        ("split", "dirichlet(0.5)", "dirichlet(0.5)"),
        ("flip", False, False),
        (
            "dataset_options",
            ["a=text", "b=true", "c=[1, 2]"],
            {"a": "text", "b": True, "c": [1, 2]},
        ),
    ],
)
def test_values_are_read_as_toml_reads_them(field: str, typed: Any, value: Any) -> None:
    """Texts stay texts, and what was not typed is left out."""
    assert parse_fields({field: typed, "epochs": None}) == {field: value}


TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize("command", ["grid", "tune"])
def test_a_manager_elsewhere_has_its_own_data(
    refused: Callable[..., str], tmp_path: Path, command: str
) -> None:
    """Nor can a grid both be detached and only be looked at."""
    file = tmp_path / "any.toml"
    manager = "--manager", "127.0.0.1:1"
    line = refused(command, file, *manager, "--data-dir", tmp_path)
    assert line.startswith(f"data-dir = {str(tmp_path)!r}"[:60])
    assert line.endswith("cannot go with --manager: that manager has its own")
    line = refused(command, file, *manager, "--allow", "lab")
    assert line.startswith("allow = ['lab']: is for runs here; start manager and workers with")
    assert refused(command, file, "--detach", "--status").startswith("options = ")


def test_a_variable_is_no_contradiction(
    downpour: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set once, for many commands."""
    monkeypatch.setenv("DOWNPOUR_SHARED", str(tmp_path))
    said = downpour("grid", tmp_path / "any.toml", "--manager", "127.0.0.1:1").err
    assert "FILE = " in said


NOTHING_SAID: Values = dict.fromkeys(("file", "resume", "on", "workers", *Spec.model_fields))


def found(**said: Any) -> tuple[Path | None, str]:
    """Return the file that a command gets, and the remark on it."""
    asked = find_spec({**NOTHING_SAID, **said})
    return asked.file, asked.remark


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one spec and a file for another command."""
    (tmp_path / "mine.toml").write_text("epochs = 1\n")
    (tmp_path / "grid.toml").write_text("epochs = [1, 2]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_one_spec_of_a_folder_is_taken_and_named(folder: Path) -> None:
    """The spec holds its fields."""
    remark = "no FILE was named, so this is mine.toml"
    assert found() == (folder / "mine.toml", remark)


@pytest.mark.parametrize(
    ("name", "value"),
    [("file", Path("grid.toml")), ("dataset", "digits"), ("model", "mlp"), ("task", "lab:Lab")],
)
@pytest.mark.usefixtures("folder")
def test_a_command_line_that_says_what_to_train_needs_no_file(name: str, value: Any) -> None:
    """A spec that happens to lie there changes nothing about `--dataset digits`."""
    Path("grid.toml").write_text("epochs = 3\n")
    assert found(**{name: value}) == (value if name == "file" else None, "")


def test_a_folder_without_a_spec_changes_nothing(folder: Path) -> None:
    """Plain `downpour run` trains the digits there."""
    (folder / "mine.toml").unlink()
    assert found() == (None, "")


def test_several_specs_are_listed(folder: Path) -> None:
    """None is guessed."""
    (folder / "a.toml").write_text("shards = 2\n")
    with pytest.raises(SpecError, match=r"in this folder: a\.toml, mine\.toml"):
        found()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"epochs": "0"}, "epochs = 0: must be a whole number"),
        ({"workers": 0}, "workers = 0: must be a whole number"),
        ({"on": "nowhere"}, "on = 'nowhere': must be "),
        ({"momentum": "0", "nesterov": True}, "FILE = None: "),
    ],
)
def test_a_mistake_in_an_option_comes_before_the_choice_of_a_file(
    folder: Path, said: dict[str, Any], line: str
) -> None:
    """It is wrong with each of the files; a value that one file allows is not."""
    (folder / "adam.toml").write_text("optimizer = 'adam'\n")
    (folder / "mine.toml").write_text("momentum = 0.5\n")
    with pytest.raises(SpecError) as refused:
        found(**said)
    assert str(refused.value).startswith(line)


Refused = Callable[..., str]


class Idler:
    """A worker that says who it is."""

    def ping(self) -> WorkerInfo:
        return WorkerInfo(protocol=1, version="9.9", name="anna")

    def __getattr__(self, name: str) -> Any:
        """Offer the rest of the service, which no test here calls."""
        return None


def test_a_manager_answers(downpour: Callable[..., Any], served: Served) -> None:
    """With its version."""
    outcome = downpour("ping", served.address)
    assert (outcome.status, outcome.out) == (
        0,
        f"manager at {served.address}, downpour {VERSION}\n",
    )


def test_a_worker_answers(downpour: Callable[..., Any]) -> None:
    """With its name."""
    with serve_worker(Idler(), "127.0.0.1", 0) as server:
        outcome = downpour("ping", "--worker", server.address)
    assert (outcome.status, outcome.out) == (0, f"worker anna at {server.address}, downpour 9.9\n")


def test_a_worker_is_no_manager(downpour: Callable[..., Any], served: Served) -> None:
    """One line says that another program answers there."""
    outcome = downpour("ping", "--worker", served.address)
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "does not understand ping" in outcome.err


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "which-cluster.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_reaches_the_cluster_that_is_meant() -> None:
    """Real processes, beside an unrelated cluster; the page shows what they did."""
    if reason := why_not() or lab.why_not():
        pytest.skip(reason)
    made = matrix()
    assert made in PAGE.read_text("utf-8"), f"write it anew: python -m tests.cli.addresses\n{made}"


__all__ = ["downpour", "own_signals"]

# `typo` is a folder that does not exist, `here` one that does; no manager is anywhere.
CHECKS = [
    *(f"doctor --shared {folder}" for folder in ("typo", "typo/deeper/still", "here")),
    "doctor --shared typo --hosts hosts",
    "doctor --shared here/typo --manager 127.0.0.1:1",
    "ping 127.0.0.1:1",
    *(
        f"{command} --shared {folder}"
        for folder in ("typo", "typo/deeper", "here")
        for command in (
            "ps",
            "list",
            "status",
            "watch --connect-seconds 0",
            "results x-1",
            "trace x-1",
            "replay x-1",
            "evaluate x-1",
            "cancel x-1",
            "submit --epochs 1 --connect-seconds 0",
            "down",
            "run --on slurm --dry-run",
            "up --on slurm --dry-run",
            "up --on ssh --hosts hosts --dry-run",
        )
    ),
    "report typo",
    "grid typo.toml",
]


@pytest.mark.parametrize("words", CHECKS)
def test_nothing_is_made(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Neither a file nor a folder, whether the check succeeds or not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "hosts").write_text("n1\n")
    outcome = downpour(*words.split())
    assert "Traceback" not in outcome.err
    if words.startswith("doctor") and "typo" in words:
        assert outcome.status == 2
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["here", "hosts"]
