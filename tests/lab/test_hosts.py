"""Hosts: shares of the machine, ssh, plugs that are pulled, and what a lab leaves: nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.lab.conftest import MakeLab
from tests.lab.failing import until
from tests.lab.lab import Lab, why_not
from tests.lab.measure import pinged
from tests.lab.shares import ROOT

pytestmark = pytest.mark.slow

BUSY = """
import time
began = time.monotonic()
while time.monotonic() < began + 2:
    pass
print(time.process_time() / (time.monotonic() - began))
"""
GREEDY = "held = bytearray(300_000_000); print(len(held))"
LAB = """
import sys, threading
from tests.lab.lab import Lab, why_not
with Lab("switch", hosts=2) as lab:
    print(lab.path, *(host.process for host in [*lab, lab["store"]]), flush=True)
    threading.Event().wait()
"""


def test_a_host_at_a_quarter_gets_a_quarter(make_lab: MakeLab) -> None:
    """Of one processor, for all that it runs; until it is let go."""
    [host] = make_lab("switch", 1)
    host.limit(processors=0.25)
    assert 0.05 < float(host.run(sys.executable, "-c", BUSY)) < 0.32
    host.limit()
    # Other tests may use the processors as well, so it may take several tries.
    until("it gets more", lambda: float(host.run(sys.executable, "-c", BUSY)) > 0.32)


def test_a_process_that_exceeds_its_hosts_memory_is_killed(make_lab: MakeLab) -> None:
    """The rest of the host goes on, and another host is not affected."""
    host, other = make_lab("switch", 2)
    host.limit(memory_bytes=100_000_000)
    greedy = host.start(sys.executable, "-c", GREEDY)
    greedy.communicate(timeout=60)
    assert greedy.returncode not in {0, 1}
    assert host.run("echo", "here") == "here\n"
    assert other.run(sys.executable, "-c", GREEDY) == "300000000\n"


def test_hosts_reach_each_other_by_name_with_plain_ssh(make_lab: MakeLab) -> None:
    """Nobody is asked anything, and each session is in the host's share of the machine."""
    lab = make_lab("switch", 2)
    lab["pc2"].limit(processors=0.25)
    said = lab["pc1"].run("ssh", "pc2", f"hostname; {sys.executable} -c '{BUSY}'").split()
    assert said[0] == "pc2"
    assert float(said[1]) < 0.32


def test_a_host_dies_at_once_and_comes_back(make_lab: MakeLab) -> None:
    """With all its processes; then it is reached as before, and has the folder again."""
    lab = make_lab("switch", 2, "folder")
    one, other = lab
    one.run("sh", "-c", f"echo kept >{lab.folder}/file")
    sleeping = other.start("sleep", "1000")
    other.kill()
    assert sleeping.wait(60) != 0
    assert not other.is_up
    assert pinged(one, lab["store"], 5, 0.01)[1] == 0.0
    lab.start("pc2")
    assert one.run("ssh", "pc2", f"cat {lab.folder}/file") == "kept\n"


def test_locks_of_the_folder_reach_other_hosts_and_end_with_them(make_lab: MakeLab) -> None:
    """What a plain local folder cannot show."""
    lab = make_lab("switch", 2, "folder")
    one, other = lab
    holder = one.start("flock", f"{lab.folder}/lock", "sh", "-c", "echo held; sleep 1000")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    other.run("flock", "--nonblock", f"{lab.folder}/lock", "true", status=1)
    one.kill()
    holder.communicate()

    def is_free() -> bool:
        taken = other.start("flock", "--nonblock", f"{lab.folder}/lock", "true")
        taken.communicate()
        return taken.returncode == 0

    until("the lock is free", is_free)


def test_a_host_dies_at_once_while_it_waits_for_a_store_that_is_away(make_lab: MakeLab) -> None:
    """A program that waits in the kernel for the folder ends with its host, too."""
    lab = make_lab("switch", 2, "folder")
    one, other = lab
    lab["store"].cut()
    waiting = one.start("mkdir", lab.folder / "new")
    until("it waits", lambda: waits(waiting.pid, "mkdir"))
    one.kill()
    assert waiting.wait(60) != 0
    lab["store"].heal()
    other.run("ls", lab.folder)


def waits(process: int, name: str) -> bool:
    """Whether a program that a process has started waits for something."""
    family = psutil.Process(process).children(recursive=True)
    asleep = {psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP}
    return any(one.name() == name and one.status() in asleep for one in family)


def test_the_folder_of_one_host_is_slow(make_lab: MakeLab) -> None:
    """Each of its requests takes longer; the others' do not, and hosts talk as before."""
    lab = make_lab("switch", 2, "folder")
    one, other = lab
    one.delay(0.3, to=lab["store"])
    look = "import os, sys, time; a = time.monotonic(); os.mkdir(sys.argv[1]); "
    look += "print(time.monotonic() - a)"
    took = [
        float(host.run(sys.executable, "-c", look, lab.folder / host.name)) for host in (one, other)
    ]
    assert took[0] > 0.3 > took[1]


def test_two_labs_do_not_see_each_other(make_lab: MakeLab) -> None:
    """Both have a host at the same address; faults of one are its own."""
    first, second = make_lab("switch", 2), make_lab("two-sites", 2)
    first["pc1"].cut()
    assert pinged(first["pc1"], first["pc2"], 3, 0.01)[1] == 1.0
    assert pinged(second["pc1"], second["pc2"], 3, 0.01)[1] == 0.0


def leftovers(path: Path) -> Iterator[str]:
    """Yield whatever of a lab is still there."""
    if path.exists():
        yield str(path)
    yield from (str(found) for found in ROOT.glob(f"**/{path.name}"))
    if str(path) in Path("/proc/mounts").read_text():
        yield "a mount"
    for process in psutil.process_iter():
        try:
            if any(str(path) in word for word in process.cmdline()):
                yield str(process)
        except psutil.Error:
            continue


def cables_here() -> list[str]:
    """Return the ends of cables that are interfaces of this machine; others may come and go."""
    return [name for name in psutil.net_if_addrs() if name.startswith(("near", "port"))]


def test_a_lab_leaves_nothing() -> None:
    """No folder, group, mount, process or interface; nor does one that ends by an error."""
    if reason := why_not("folder"):
        pytest.skip(reason)
    with suppress(ZeroDivisionError), Lab("switch", hosts=2) as lab:
        path, processes = lab.path, [host.process for host in lab]
        lab["pc1"].start("sleep", "1000")
        assert not cables_here()
        assert 1 / 0
    assert not list(leftovers(path))
    assert not any(map(psutil.pid_exists, processes))
    assert not cables_here()


def test_a_killed_lab_is_cleaned_up_by_the_next() -> None:
    """Its hosts end with it; the next lab removes its folder and groups, not those of others."""
    if reason := why_not("folder"):
        pytest.skip(reason)
    command = [sys.executable, "-c", LAB]
    with Lab("switch", hosts=1, shared="nothing") as alive:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        ) as killed:
            assert killed.stdout is not None
            path, *processes = killed.stdout.readline().split()
            os.kill(killed.pid, signal.SIGKILL)
        until("its hosts end", lambda: not any(psutil.pid_exists(int(one)) for one in processes))
        with Lab("switch", hosts=1, shared="nothing") as cleaning:
            assert Path(path) in cleaning.removed
            assert alive.path.is_dir()
            until("all is gone", lambda: not list(leftovers(Path(path))))
        assert alive["pc1"].run("echo", "here") == "here\n"
