"""Programs of other libraries train as the page says, in real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "ports"
LIT = ["-m", "downpour", "run", "--task", "lit_digits:LitDigits", "--allow", "lit_digits"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "file", "arguments", "told"),
    [
        ("lightning", "lit_digits.py", [*LIT, "--epochs", "2", "--workers", "2"], "val_accuracy"),
        ("transformers", "trainer_gpt2.py", ["trainer_gpt2.py"], "next letter"),
    ],
)
def test_a_port_trains(
    tmp_path: Path, library: str, file: str, arguments: list[str], told: str
) -> None:
    """With as many changed lines as the page shows, and with the metrics of the library's own."""
    pytest.importorskip(library, reason=f"needs {library}")
    (tmp_path / file).write_text((FOLDER / file).read_text("utf-8"), "utf-8")
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
