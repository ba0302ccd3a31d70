"""What the compose files come to, without starting anything."""

import os
import subprocess

import pytest

from tests.cluster.docker.conftest import ROOT, succeeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NFS = ("-f", str(ROOT / "docker/compose.yaml"), "-f", str(ROOT / "docker/compose.nfs.yaml"))


def test_a_fresh_clone_needs_no_variables(compose_command: tuple[str, ...]) -> None:
    """Everything has a default."""
    assert succeeds(*compose_command, *NFS[:2], "config", "--quiet")


def test_an_nfs_export_takes_the_volumes_place(compose_command: tuple[str, ...]) -> None:
    """It is mounted as told, its owner stays, and only this machine reaches the manager."""
    command = [*compose_command, *NFS, "config"]
    named = {**os.environ, "NFS_SERVER": "10.0.0.1", "NFS_EXPORT": "/srv/downpour"}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=named).stdout
    assert "o: addr=10.0.0.1,nfsvers=4.1,hard,lookupcache=positive" in text
    assert "device: :/srv/downpour" in text
    assert text.count("nocopy: true") >= 2
    assert "127.0.0.1" in text


def test_an_nfs_server_that_is_not_named_is_asked_for(compose_command: tuple[str, ...]) -> None:
    """There is no sensible default."""
    command = [*compose_command, *NFS, "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "must name the NFS server" in done.stderr
