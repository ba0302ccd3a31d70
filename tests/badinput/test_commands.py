"""Command lines, variables and working directories that cannot be meant are refused in one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.badinput.command_lines import ADDRESSES, COMMANDS, DIGITS, FIFOS, PLACES
from tests.badinput.conftest import Refused, is_one_line
from tests.conftest import Allow

TRACES = Path(__file__).parents[2] / "traces"

NOBODY = "127.0.0.1:1"


@pytest.fixture
def places(tmp_path: Path, allowing: Allow) -> dict[str, str]:
    """What stands for what in the tables."""
    del allowing  # nothing is allowed
    file, grid, noise = (tmp_path / f"{name}.toml" for name in ("FILE", "GRID", "NOISE"))
    file.write_text("epochs = 1\n")
    grid.write_text('name = "grid"\nworkers = 1\nseed = 1\n')
    noise.write_bytes(b"\xff\xfe\x00name")
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    fifo = tmp_path / "fifo.png"
    os.mkfifo(fifo)
    full.mkdir()
    (full / "of.txt").write_text("something else")
    return {
        "FULLDIR": str(full),
        "FILE": str(file),
        "GRID": str(grid),
        "NOISE": str(noise),
        "DIR": str(empty),
        "LONG": "x" * 300,
        "DIGITS": "9" * 5000,
        "HEX": "0x" + "f" * 5000,
        "FIFO": str(fifo),
        "TRACES": str(TRACES / "traces.npz"),
        "NOBODY": NOBODY,
    }


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("spec.toml", "other.toml"), ("FILE", "other.toml, spec.toml")),
        (("spec.toml", "BROKEN.toml"), ("BROKEN.toml", "must be a readable TOML file")),
    ],
)
def test_a_folder_does_not_say_which_spec_is_meant(
    bad: Refused, tmp_path: Path, files: tuple[str, ...], named: tuple[str, ...]
) -> None:
    """Two may be meant, or the one that cannot be read: a line names them."""
    for file in files:
        (tmp_path / file).write_bytes(b"\xff" if file == "BROKEN.toml" else b"epochs = 1\n")
    bad(["run"], *named)
    assert {path.name for path in tmp_path.iterdir()} == set(files)


@pytest.mark.parametrize(
    "row", [*COMMANDS, *DIGITS, *PLACES, *FIFOS, *ADDRESSES], ids=lambda row: row[0]
)
def test_a_command_line_is_refused(
    bad: Refused,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row: tuple[str, ...],
) -> None:
    """One line, which names what is wrong; nothing is started, and nothing is left behind."""
    here = tmp_path / "here"  # without a spec, which `run` would take
    here.mkdir()
    monkeypatch.chdir(here)
    words = row[0].split(" ")
    for stands, for_ in places.items():
        words = [word.replace(stands, for_) for word in words]
    bad(words, *row[1:])
    assert not Path("shared_dir").exists()
    assert not Path("results").exists()
    shutil.rmtree(places["DIR"])


VARIABLES: list[tuple[str, str, list[str], str]] = [
    ("DOWNPOUR_MANAGER", "host:port", ["list"], "manager = 'host:port'"),
    ("DOWNPOUR_MANAGER", "127.0.0.1:1", ["status"], "127.0.0.1:1 cannot be reached"),
    ("DOWNPOUR_MANAGER", "127.0.0.1:1", ["ping"], "127.0.0.1:1 cannot be reached"),
    ("DOWNPOUR_SHARED", "~nobody-of-that-name", ["run"], "shared = '~nobody-of-that-name'"),
    ("DOWNPOUR_SHARED", "x" * 300, ["doctor"], "shared = 'xxx"),
    ("DOWNPOUR_DATA", "nowhere", ["run"], "'nowhere' does not exist"),
    ("DOWNPOUR_TOKEN_FILE", "nowhere", ["list"], "token_file = 'nowhere'"),
    ("DOWNPOUR_TLS_CERT", "nowhere", ["list"], "tls"),
    ("DOWNPOUR_TLS_CA", "nowhere", ["list"], "tls"),
    ("DOWNPOUR_TOKEN", "short", ["manager", "--shared", "s", "--port", "0"], "token"),
]


@pytest.mark.parametrize(("variable", "value", "words", "named"), VARIABLES)
def test_a_variable_is_refused(
    bad: Refused,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: list[str],
    named: str,
) -> None:
    """As the option would be that it stands for."""
    monkeypatch.setenv(variable, value)
    bad(words, named)


def test_a_working_directory_may_be_gone(bad: Refused, tmp_path: Path) -> None:
    """Whatever is relative to it cannot be, and that is said: at the start, and by each command."""
    gone = tmp_path / "gone"
    script = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {sys.executable} -P -m downpour run"
    told = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout) == (2, "")
    is_one_line(told.stderr)
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for words in (["doctor"], ["grid", "x.toml"], ["certs", "a"]):
        bad(words)
