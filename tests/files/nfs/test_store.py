"""The shared directory on NFS with its default options: two machines, and a server with moods."""

from threading import Event
from typing import Any

import pytest

from tests.files.nfs.lab import LEASE_SECONDS, Guest, Lab

pytestmark = pytest.mark.slow

PAUSE_SECONDS = 10
AWAY_SECONDS = 10

SETUP = """
import fcntl, os, secrets, subprocess, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from downpour.learning.datasets import prepare
from downpour.learning.datasets.prepared import open_prepared
from downpour.learning.datasets.source import Arrays, SourceFiles
from downpour.base.errors import StoreError
from downpour.core.spec import Spec
from downpour.files.store import SharedDirectory
from downpour.base.values import PublishedFile

slept = []

def sleep(seconds):
    slept.append(seconds)
    time.sleep(seconds)

def opened(root, seconds=30.0):
    shared = SharedDirectory.open(Path(root), create=True)
    return replace(shared, sleep=sleep, patience_seconds=seconds)

class Source:
    reads = 0
    def check(self, spec, data_dir): pass
    def find(self, spec, data_dir, downloads):
        return SourceFiles(fingerprint=("lab",), read=self.read)
    def read(self):
        self.reads += 1
        x, y = np.zeros((10, 2)), np.arange(10) % 2
        return Arrays(train_x=x, train_y=y, test_x=x, test_y=y)

shared = opened("/mnt/shared/store")
"""


@pytest.fixture(scope="module", autouse=True)
def _shared(anna: Guest, bert: Guest, carl: Guest) -> None:
    for guest in (anna, bert, carl):
        guest.python(SETUP)


def published(guest: Guest, experiment: str, size_bytes: int = 1_000_000) -> str:
    """Publish a file on one machine; return the code that names it on another one."""
    made = guest.python(
        f"file = shared.create_experiment({experiment!r}).put_new('f', [b'x' * {size_bytes}])\n"
        "out = [file.name, file.size_bytes, file.checksum]"
    )
    return "PublishedFile(name={!r}, size_bytes={!r}, checksum={!r})".format(*made)


def test_a_file_requested_too_early_is_found_at_once(anna: Guest, bert: Guest) -> None:
    """A client remembers for half a minute that there was no such folder, unless it lists."""
    early = "out = [(shared.experiments / 'early' / 'f').exists(), shared.datasets.is_dir()]"
    assert bert.python(early) == [False, True]
    file = published(anna, "early")
    assert bert.python(early)[0] is False, "this client sees what is there: nothing is tested"
    looks = f"slept.clear(); shared.store('early').read({file}); out = len(slept)"
    assert bert.python(looks) <= 2
    assert bert.python("out = shared.store('early')._is_remote"), "files would be mapped at once"


def test_a_dataset_that_was_asked_for_too_early_is_neither_missed_nor_made_again(
    anna: Guest, bert: Guest, carl: Guest
) -> None:
    """Neither by a machine that wants to read it, nor by one that would make it."""
    preparing = "source = Source(); out = prepare(Spec.make(dict()), {}, source=source)"
    anna.python("os.chdir(Path.home())")  # of the machine's own
    anna.python("Path('datasets-of-mine').mkdir()")
    key = anna.python(preparing.format("Path('datasets-of-mine')"))
    look = f"out = (shared.datasets / {key!r}).is_dir()"
    assert not bert.python(look)
    assert not carl.python(look)
    assert anna.python(preparing.format("shared.datasets")) == key
    for guest in (bert, carl):
        assert not guest.python(look), "this client sees what is there: nothing is tested"
    read = (
        f"slept.clear(); shared.retry_policy.call(lambda: open_prepared(shared.datasets, {key!r}))"
    )
    assert bert.python(f"{read}; out = len(slept)") <= 2
    assert carl.python(f"{preparing.format('shared.datasets')}, source.reads") == [key, 0]


HOLDER = """
import fcntl
file = open("/mnt/shared/store/lock", "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""
HOLD = f"""
import subprocess, sys
holder = subprocess.Popen([sys.executable, "-c", {HOLDER!r}], stdin=-1, stdout=-1, text=True)
out = holder.stdout.readline().strip()
"""
WAIT = """
began = time.monotonic()
with open("/mnt/shared/store/lock", "ab") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    out = time.monotonic() - began
"""


def test_a_lock_is_free_when_its_holder_dies(anna: Guest, bert: Guest) -> None:
    """At once: the holder's machine lives and lets go of it."""
    assert anna.python(HOLD) == "held"
    taken = bert.begin(WAIT)
    anna.python("holder.kill(); holder.wait()")
    assert taken.result(30) < 30


def test_a_server_that_stands_still_is_waited_for(lab: Lab, anna: Guest, bert: Guest) -> None:
    """Publishing and reading take as long as it does, and nothing else comes of it."""
    file = published(anna, "paused")
    bert.run("sh", "-c", "echo 3 >/proc/sys/vm/drop_caches")
    with lab.server_paused():
        read = bert.begin(f"out = len(shared.store('paused').read({file}))")
        write = anna.begin("out = shared.store('paused').put_new('g', [b'y' * 9]).size_bytes")
        Event().wait(PAUSE_SECONDS)  # as long as the server stands still
    assert (read.result(60), write.result(60)) == (1_000_000, 9)
    assert bert.python("out = shared.store('paused').list()") == ["f", "g"]


DOCTOR = """
import signal, sys
words = [sys.executable, "-m", "downpour", "doctor", "--shared", "/mnt/shared"]
doctor = subprocess.Popen(words, env={"PYTHONPATH": sys.path[0]}, stderr=subprocess.DEVNULL)
while len(os.listdir(f"/proc/{doctor.pid}/task")) < 2:  # it has not begun
    time.sleep(0.1)
doctor.send_signal(signal.SIGINT)
out = doctor.wait(30)
"""


def test_the_doctor_tells_of_a_server_that_stands_still(lab: Lab, anna: Guest) -> None:
    """In time, or ends at Ctrl-C, which does not arrive where one waits for such a server."""
    anna.python("from downpour.cluster.doctor import diagnose")
    look = "findings = diagnose(shared.root, None, limit_seconds=2)\n"
    with lab.server_paused():
        found = anna.python(look + "out = [[f.verdict, f.seen] for f in findings.values()]")
        assert anna.python(DOCTOR) == 130
    assert found[0] == ["failed", "no answer for 2 s"]
    assert {verdict for verdict, _ in found[1:]} == {"not checked"}


def softly_mounted(guest: Guest) -> None:
    """Mount the share a second time, so that what the server does not answer soon fails."""
    options = "vers=4.1,soft,timeo=10,retrans=1,nosharecache"
    guest.run("mkdir", "-p", "/mnt/soft")
    guest.run("mount", "-t", "nfs", "-o", options, "10.77.0.1:/shared", "/mnt/soft")


def test_on_a_soft_mount_a_publisher_outlasts_a_server_that_is_away(lab: Lab, anna: Guest) -> None:
    """It meets errors there; they are waited out while patience lasts, and told when it ends."""
    softly_mounted(anna)
    anna.python(
        "soft = opened('/mnt/soft/store').create_experiment('soft')\n"
        "hasty = opened('/mnt/soft/store', 0.0).store('soft')\n"
        "slept.clear()"
    )
    failing = "try: out = hasty.put_new('hasty', [b'x'])\nexcept StoreError as error: {}"
    with lab.server_away():
        patient = anna.begin("soft.put_new('patient', [b'x' * 1_000_000]); out = len(slept)")
        hasty = anna.begin(failing.format("out = str(error)"))
        Event().wait(AWAY_SECONDS)  # as long as the server is away
    assert patient.result(60) > 0
    assert hasty.result(60) == "hasty: cannot be written: Input/output error"
    assert anna.python("out = soft.list()") == ["patient"]
    anna.run("umount", "/mnt/soft")


PUBLISH = """
try:
    out = shared.store("full").put_new("big", [bytes(8 * 2**20)]).size_bytes
except StoreError as error:
    out = str(error)
"""


def test_a_full_disk_is_told_and_publishing_goes_on_when_there_is_room(
    lab: Lab, anna: Guest, bert: Guest
) -> None:
    """One line, nothing half published, and no machine remembers it."""
    anna.python("shared.create_experiment('full')")
    with lab.disk_full():
        told = bert.python(PUBLISH)
    folder = "/mnt/shared/store/experiments/full"
    assert told == f"shared directory {folder}: full (No space left on device)"
    assert anna.python("out = os.listdir(shared.experiment_path('full'))") == []
    assert bert.python(PUBLISH) == 8 * 2**20


def test_machines_that_see_different_folders_notice(anna: Guest, bert: Guest) -> None:
    """A file that the manager has just written is not there."""
    name = anna.python("out = shared.announce('secret').name")
    read = f"other = opened('/mnt/shared/other', 1.0)\nout = other.read_presence({name!r})"
    with pytest.raises(AssertionError, match="sees a different folder"):
        bert.python(read)
    assert bert.python(f"out = shared.read_presence({name!r})") == "secret"


def test_a_lock_is_free_some_time_after_its_holders_machine_died(lab: Lab, bert: Guest) -> None:
    """The server waits for the lease to end: a preparation waits as long, and then goes on."""
    lost = lab.guests[-1]
    assert lost.python(HOLD) == "held"
    waiting: Any = bert.begin(WAIT)
    lost.halt()
    assert LEASE_SECONDS / 2 < waiting.result(80) < 80
