"""The leader's lease, and the token in the shared directory."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Leader, Lease, current_leader, highest_term
from downpour.files.store.shared_directory import make_token
from downpour.host.paths import Credentials
from downpour.network.rpc import Trust

PATIENCE_SECONDS = 30.0
HOLDER = """
import sys
from pathlib import Path
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Lease
lease = Lease(SharedDirectory.open(Path(sys.argv[1]), create=False))
lease.acquire(wait=False, while_waiting=print)
lease.claim("elsewhere:1")
print("held", flush=True)
sys.stdin.read()
"""


def must_not_wait(holder: Leader | None) -> None:
    """The directory is free, so the lease is there at once."""
    raise AssertionError(holder)


@pytest.fixture
def shared(tmp_path: Path) -> SharedDirectory:
    """An empty shared directory."""
    return SharedDirectory.open(tmp_path, create=True)


def test_terms_rise_and_the_highest_says_who_is_in_office(shared: SharedDirectory) -> None:
    """Each has a file of its own that is never written again."""
    assert current_leader(shared.terms) is None
    for term in (1, 2, 3):
        lease = Lease(shared)
        lease.acquire(wait=False, while_waiting=must_not_wait)
        assert lease.claim(f"host:{term}").term == term
        assert lease.is_leader
        lease.release()
    leader = current_leader(shared.terms)
    assert leader is not None
    assert (leader.term, leader.addresses) == (3, ("host:3",))
    assert highest_term(shared.terms) == 3


@pytest.mark.parametrize("content", [b"\xff", b'{"cluster": "\\udcff"}', b'{"cluster": []}'])
def test_a_damaged_term_is_no_cluster(shared: SharedDirectory, content: bytes) -> None:
    """A manager that took its identity over could be read by nobody."""
    first = Lease(shared).claim("host:1")
    (shared.terms / "000002").write_bytes(content)
    assert current_leader(shared.terms) is None
    assert Lease(shared).claim("host:3").cluster == first.cluster
    assert current_leader(shared.terms) is not None


def test_a_holder_that_lost_its_lock_learns_of_the_later_term(shared: SharedDirectory) -> None:
    """As where a network file system has given it to somebody else."""
    first = Lease(shared)
    first.claim("first:1")
    Lease(shared).claim("second:2")
    assert not first.is_leader


def test_leadership_is_unknown_without_the_terms(shared: SharedDirectory) -> None:
    """It goes on for the time being, and must not act on that."""
    lease = Lease(shared)
    lease.claim("first:1")
    assert lease.leads()
    hidden = shared.terms.rename(shared.terms.with_name("hidden"))
    shared.terms.write_text("not a folder")
    assert lease.is_leader
    with pytest.raises(SharedDirectoryError):
        lease.leads()
    shared.terms.unlink()
    hidden.rename(shared.terms)
    assert lease.leads()


def test_a_successor_makes_no_directory_that_is_away(shared: SharedDirectory) -> None:
    """It would lead an empty folder below the point of a missing mount."""
    lease = Lease(shared)
    away = shared.root.with_name("away")
    shared.root.rename(away)
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        lease.acquire(wait=True, while_waiting=must_not_wait)
    assert not shared.root.exists()
    away.rename(shared.root)
    lease.acquire(wait=True, while_waiting=must_not_wait)
    lease.release()


@pytest.mark.slow
def test_a_lease_ends_with_its_holder_even_if_that_is_killed(shared: SharedDirectory) -> None:
    """Who does not wait is told who holds it; who waits gets it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(shared.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            SharedDirectoryError, match=r"serves this directory .* at elsewhere:1\)"
        ):
            Lease(shared).acquire(wait=False, while_waiting=must_not_wait)
        waiting, mine = Event(), Lease(shared)
        waiter = Thread(
            target=lambda: mine.acquire(wait=True, while_waiting=lambda _: waiting.set())
        )
        waiter.start()
        assert waiting.wait(PATIENCE_SECONDS)
        assert waiter.is_alive()
        holder.kill()
        waiter.join(PATIENCE_SECONDS)
        assert not waiter.is_alive()
        assert mine.claim("here:2").term == 2
        mine.release()


def test_a_token_is_made_once_and_readable_by_its_user_alone(tmp_path: Path) -> None:
    """A second call leaves it as it is."""
    path = tmp_path / "new folder" / "token"
    kept = os.umask(0)
    try:
        assert make_token(path)
    finally:
        os.umask(kept)
    assert path.stat().st_mode & 0o777 == 0o600
    made = Trust.load(Credentials(token_file=str(path))).token
    assert made is not None
    assert len(made) >= 32
    assert not make_token(path)
    assert Trust.load(Credentials(token_file=str(path))).token == made


def test_of_many_that_start_at_once_one_makes_it(tmp_path: Path) -> None:
    """All of them then read the same."""
    path = tmp_path / "token"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make_token, [path] * 8))
    assert made.count(True) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_two_tokens_are_never_the_same(tmp_path: Path) -> None:
    """They come from the system's random numbers."""
    for name in "ab":
        make_token(tmp_path / name)
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A path under a file can be made by nobody."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        make_token(tmp_path / "file" / "token")
