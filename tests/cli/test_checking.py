"""A command that checks or shows something changes nothing of it."""

from pathlib import Path

import pytest

from tests.cli.conftest import Downpour, downpour, own_signals

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
