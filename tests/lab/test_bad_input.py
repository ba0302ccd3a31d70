"""What cannot be is told in one line, before anything is started."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.failing import NoLab
from tests.lab.lab import Lab, why_not

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("profile", "hosts"), [("modem", 2), ("switch", 0), ("wifi", 201)])
def test_a_senseless_option_is_refused_with_the_accepted_values(profile: str, hosts: int) -> None:
    """An unknown profile names the known ones, and a number of hosts its limits."""
    with pytest.raises(NoLab, match=r"there are switch, .*two-sites|from 1 to 200") as told:
        Lab(profile, hosts=hosts)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("missing", ["tc", "ip", "nsenter"])
def test_a_missing_program_is_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is the reason with which tests are skipped, and that a lab is refused with."""
    for program in {"unshare", "nsenter", "ip", "tc", "mount", "ss"} - {missing}:
        (tmp_path / program).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert why_not().startswith(f"a lab needs {missing}, and apt-get cannot install ")
    with pytest.raises(NoLab, match=missing):
        Lab("switch", hosts=1)


@pytest.mark.slow  # installs what is missing
def test_no_permission_for_namespaces_is_one_line() -> None:
    """As in a container, whose root may not make any."""
    if reason := why_not():
        pytest.skip(reason)
    look = "from tests.lab.lab import why_not; print(why_not())"
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", look],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    assert "Operation not permitted" in done.stdout


def test_the_command_line_tells_it_too() -> None:
    """With the exit status of what was asked wrongly."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "modem"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no profile 'modem'")
    assert done.stderr.count("\n") == 1
