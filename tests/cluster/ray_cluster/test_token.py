"""A Ray cluster that takes a token, as `ray start --head` makes one where ~/.ray/auth_token is."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.line import free_port
from tests.cluster.ray_cluster.conftest import Nodes

pytest.importorskip("ray._private.authentication", reason="Ray knows no tokens")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TOKEN, OTHER = "a" * 40, "b" * 40
REFUSED = "Ray says: Authentication token is missing or incorrect; "
MISSING = "Ray says: Token authentication is enabled but no authentication token was found; "
SET_MODE = "set RAY_AUTH_MODE=token and "
PUT = "put the cluster's token into RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token\n"


@dataclass(frozen=True, slots=True)
class Head:
    """A cluster of one node: where it listens, its user's home, and the home of another user."""

    address: str
    folder: Path

    @property
    def home(self) -> Path:
        """Where the token is, as ~/.ray/auth_token."""
        return self.folder / "home"

    @property
    def other_home(self) -> Path:
        return self.folder / "other"

    def environment(self, **more: str) -> dict[str, str]:
        """Return what a command of the cluster's user has, and `more`."""
        ours = {name: value for name, value in os.environ.items() if "RAY_" not in name}
        return {**ours, "HOME": str(self.home), "RAY_TMPDIR": str(self.folder / "tmp"), **more}

    def train(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "downpour", "run", "--on", "ray", "--workers", "1"]
        command += ["--epochs", "1", "--shared", str(self.folder / "shared"), "--json", *words]
        given = self.environment(**environment)
        return subprocess.run(command, env=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """Start Ray as its users do, in a folder with a short name: its sockets' names are limited."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    head = Head(f"127.0.0.1:{free_port()}", folder)
    (head.home / ".ray").mkdir(parents=True)
    head.other_home.mkdir()
    (head.home / ".ray" / "auth_token").write_text(TOKEN, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    command += ["--port", head.address.partition(":")[2], "--num-cpus", "2"]
    command += ["--include-dashboard", "false", "--ray-client-server-port", str(free_port())]
    command += ["--object-store-memory", "100000000", "--disable-usage-stats"]
    given = head.environment()
    with subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ray:
        try:
            assert any("runtime started" in line for line in ray.stdout or ())
            yield head
        finally:
            ray.terminate()
            ray.communicate()
            shutil.rmtree(folder)


def test_the_token_of_the_users_home_is_shown_to_the_cluster_that_runs_here(head: Head) -> None:
    """The documented command trains, and Ray's notice does not stand in its output."""
    ran = head.train()
    assert ran.returncode == 0
    assert "Token authentication" not in ran.stderr


def test_a_named_cluster_is_shown_the_token_when_the_user_says_so(head: Head) -> None:
    """Ray shows it to an address only with RAY_AUTH_MODE=token; so does the command."""
    named = ("--ray-address", head.address)
    told = head.train(*named)
    assert told.returncode == 2
    assert told.stderr.endswith(f"{head.address}': {REFUSED}{SET_MODE}{PUT}")
    ran = head.train(*named, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"HOME": "other"}, REFUSED + SET_MODE + PUT),
        ({"HOME": "other", "RAY_AUTH_TOKEN": OTHER}, REFUSED + PUT),
        ({"RAY_AUTH_MODE": "disabled"}, REFUSED + SET_MODE + PUT),
        ({"HOME": "other", "RAY_AUTH_MODE": "token"}, MISSING + PUT),
        (
            {"HOME": "other", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/missing"},
            "Ray says: RAY_AUTH_TOKEN_PATH is set but file cannot be opened or is empty: /missing; "
            + PUT,
        ),
    ],
    ids=["none", "another", "disabled", "none in the home", "no file"],
)
def test_without_its_token_a_cluster_costs_one_line(
    head: Head, environment: dict[str, str], reason: str
) -> None:
    """With Ray's reason and what to set; Ray itself would try for 20 s, and warn as often."""
    if "HOME" in environment:
        environment = {**environment, "HOME": str(head.other_home)}
    told = head.train(**environment)
    assert told.stderr == f"downpour: ray_address = 'auto': {reason}"
    assert told.returncode == 2


def test_of_several_clusters_one_has_to_be_named(head: Head, nodes: Nodes) -> None:
    """Ray would train on the one that was started last, which may be another user's."""
    told = head.train()
    ours = nodes.address.partition(":")[0] + ":" + head.address.partition(":")[2]
    both = " and ".join(sorted([nodes.address, ours]))
    told_by = "downpour: ray_address = 'auto': several Ray clusters run here, at "
    assert told.stderr == f"{told_by}{both}; name one with --ray-address\n"
    assert told.returncode == 2


def test_a_cluster_that_has_ended_is_told_at_once(head: Head) -> None:
    """RAY_ADDRESS, or the note that Ray keeps of its last cluster, may name one."""
    gone = f"127.0.0.1:{free_port()}"
    told = head.train(RAY_ADDRESS=gone)
    assert told.returncode == 2
    assert "no Ray answers at " in told.stderr
    assert told.stderr.count("\n") == 1
