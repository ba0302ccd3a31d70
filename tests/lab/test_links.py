"""Links behave as their profile says, and as a test tells them to, in each direction.

Bounds are wide where a busy machine makes things slower, and narrow where a link must not be
better than it should be.
"""

import sys

import pytest

from tests.lab.conftest import MakeLab
from tests.lab.hosts import HostProcess, LabHost
from tests.lab.links import PROFILES
from tests.lab.measure import pinged, sent

pytestmark = pytest.mark.slow

LISTEN = """
import socket
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.bind(("", 7000))
print("up", flush=True)
heard = []
while (word := line.recv(100).decode()) != "end":
    heard.append(word)
print(len(heard))
"""
TELL = """
import socket, sys
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[3])):
    line.sendto(sys.argv[2].encode(), (sys.argv[1], 7000))
"""


def listening(host: LabHost) -> HostProcess:
    """Let a host count the words that it is told, until one is the end."""
    listener = host.start(sys.executable, "-c", LISTEN)
    assert listener.stdout is not None
    assert listener.stdout.readline() == "up\n"
    return listener


def tell(host: LabHost, to: LabHost, word: str, times: int = 1) -> None:
    """Tell another host a word."""
    host.run(sys.executable, "-c", TELL, to.address, word, times)


def heard(listener: HostProcess) -> int:
    """Return how many words came before the end."""
    return int(listener.communicate(timeout=60)[0])


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_what_it_says(name: str, make_lab: MakeLab) -> None:
    """Neither faster nor much slower, in either direction, and what is lost is lost."""
    asked, lab = PROFILES[name], make_lab(name, 2)
    near, far = lab
    for one, other in ((near, far), (far, near)):
        seconds, _ = pinged(one, other, 100, 0.01)
        assert seconds > asked.round_trip_seconds * 0.75
        assert seconds < asked.round_trip_seconds * 1.5 + 0.005
        bits_per_second = sent(one, other, 2.0)
        assert bits_per_second < asked.bits_per_second * 1.02
        assert bits_per_second > asked.bits_per_second * 0.4
    _, lost = pinged(near, far, 2000, 0.001)
    assert (lost > 0) == (asked.loss > 0)
    assert lost < 8 * asked.loss + 1e-9


def test_a_cut_has_a_direction_and_heals(make_lab: MakeLab) -> None:
    """One host hears nothing of another one, which hears it all the same."""
    one, other, third = make_lab("switch", 3)
    other.cut(from_=one)
    there, here = listening(other), listening(one)
    tell(one, other, "lost", 5)
    tell(other, one, "heard", 5)
    tell(other, one, "end")
    tell(third, other, "heard", 3)
    other.heal()
    tell(one, other, "end")
    assert heard(here) == 5
    assert heard(there) == 3


def test_a_host_is_cut_off_altogether(make_lab: MakeLab) -> None:
    """Nobody reaches it, and it reaches nobody, until its link is healed."""
    one, other = make_lab("switch", 2)
    one.cut()
    assert pinged(one, other, 5, 0.01)[1] == pinged(other, one, 5, 0.01)[1] == 1.0
    one.heal()
    assert pinged(one, other, 5, 0.01)[1] == 0.0


def test_a_share_of_packets_is_lost_and_others_are_late(make_lab: MakeLab) -> None:
    """The rest of the network is as before."""
    one, other, third = make_lab("switch", 3)
    one.lose(0.3, to=other)
    assert 0.1 < pinged(one, other, 300, 0.002)[1] < 0.6
    assert pinged(one, third, 50, 0.002)[1] == 0.0
    one.heal()
    one.delay(0.2, from_=other)
    assert pinged(one, other, 10, 0.01)[0] > 0.2
    assert pinged(one, third, 10, 0.01)[0] < 0.2


def test_a_link_is_throttled_and_let_go(make_lab: MakeLab) -> None:
    """Both directions, while the lab runs."""
    one, other = make_lab("switch", 2)
    one.throttle(100_000)
    for near, far in ((one, other), (other, one)):
        assert sent(near, far, 1.0) < 100_000 * 8 * 1.2
    one.throttle()
    assert sent(one, other, 1.0) > 100_000 * 8 * 10


def test_bytes_are_counted_in_each_direction(make_lab: MakeLab) -> None:
    """A host sends what another one receives, and what is counted stays when it is killed."""
    lab = make_lab("old-switch", 2)
    one, other = lab
    before = one.traffic(), other.traffic()
    bits_per_second = sent(one, other, 1.0)
    gone, come = one.traffic() - before[0], other.traffic() - before[1]
    assert gone.sent_bytes > bits_per_second / 8 > 20 * gone.received_bytes
    assert come.received_bytes == pytest.approx(gone.sent_bytes, rel=0.1)
    seen = one.traffic()
    one.kill()
    assert one.traffic().sent_bytes >= seen.sent_bytes
    lab.start("pc1")
    assert one.traffic().sent_bytes >= seen.sent_bytes
