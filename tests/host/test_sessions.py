"""A process that has ended leaves none of its own behind."""

from __future__ import annotations

import os
import subprocess

import psutil

from downpour.host.process import end_session

LEAVES_ONE = "sleep 3600 >/dev/null & echo $!"


def test_the_leftovers_of_a_session_leader_are_ended() -> None:
    """Its session outlives the leader, and is how the others are found."""
    command = ["/bin/sh", "-c", LEAVES_ONE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as leader:
        said, _ = leader.communicate()
    left = psutil.Process(int(said))
    end_session(leader.pid)
    psutil.wait_procs([left], timeout=60)
    assert not left.is_running()


def test_the_own_session_is_left_alone() -> None:
    """Or a command would end itself, and the shell that it was started from."""
    with subprocess.Popen(["sleep", "3600"]) as child:
        end_session(os.getsid(0))
        assert child.poll() is None
        child.kill()
