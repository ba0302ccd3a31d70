"""This process: signals, limits, a background thread, and lines of a log."""

import errno
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from threading import Event, Thread
from unittest.mock import Mock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import one_line, size_in_words
from downpour.host import process

OF_ENGINES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give back the handlers that a test replaces."""
    kept = {number: signal.getsignal(number) for number in (*OF_ENGINES, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [(True, False, True), (True, True, False), (False, False, False)],
    ids=["a closed terminal", "an open one", "none"],
)
def test_hup_ends_a_server_whose_terminal_has_closed(
    monkeypatch: pytest.MonkeyPatch, *, before: bool, after: bool, leaves: bool
) -> None:
    """Otherwise a program that rotates logs has sent it."""
    has = [before, after]
    monkeypatch.setattr(process, "_has_terminal", lambda: has.pop(0))
    heard: list[int] = []
    process.on_leaving(heard.append)
    signal.raise_signal(signal.SIGHUP)
    assert heard == ([signal.SIGHUP] if leaves else [])


def test_signals_of_engines_are_heard_each_time() -> None:
    """By default each of them kills the process."""
    heard: list[int] = []
    process.on_leaving(heard.append)
    for number in OF_ENGINES:
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert heard == [number for number in OF_ENGINES for _ in range(2)]


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    """The process is to outlive its terminal."""
    heard: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.on_leaving(heard.append)
    signal.raise_signal(signal.SIGHUP)
    assert heard == []


def test_a_second_interrupt_ends_the_process() -> None:
    """The first one leaves in order; after it the system's default is back, which kills."""
    heard: list[str] = []
    process.on_interrupt(lambda: heard.append("interrupted"))
    signal.raise_signal(signal.SIGINT)
    assert heard == ["interrupted"]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_the_handlers_that_a_library_replaces_are_put_back() -> None:
    """Ray's `init` sets one of its own, which ends the command with status 15."""
    heard: list[int] = []
    process.on_leaving(heard.append)
    with process.kept_handlers():
        signal.signal(signal.SIGTERM, lambda *_: heard.append(-1))
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_a_thread_has_no_handlers_to_put_back() -> None:
    """Python lets the main thread alone set any."""
    entered = []

    def enter() -> None:
        with process.kept_handlers():
            entered.append(True)

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]


LEAVES_ONE = "sleep 3600 >/dev/null & echo $!"


@pytest.mark.slow
def test_the_leftovers_of_a_session_leader_are_ended() -> None:
    """Its session outlives the leader, and is how the others are found."""
    command = ["/bin/sh", "-c", LEAVES_ONE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as leader:
        said, _ = leader.communicate()
    left = psutil.Process(int(said))
    process.end_session(leader.pid)
    psutil.wait_procs([left], timeout=60)
    assert not left.is_running()


def test_the_own_session_is_left_alone() -> None:
    """Or a command would end itself, and the shell that it was started from."""
    with subprocess.Popen(["sleep", "3600"]) as child:
        process.end_session(os.getsid(0))
        assert child.poll() is None
        child.kill()


def test_every_value_comes_in_its_order() -> None:
    """Also those that wait when it is closed."""
    taken: list[int] = []
    thread = process.Background[int]("f", taken.append)
    for value in range(100):
        thread.take(value)
    thread.close()
    assert taken == [*range(100)]


def test_an_error_is_told_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """In one line, whatever it holds; later values still come."""
    taken: list[int] = []

    def broken(value: int) -> None:
        taken.append(value)
        raise ValueError("one\ntwo\x1b")

    thread = process.Background[int]("on_round broken", broken)
    with caplog.at_level(logging.WARNING):
        for value in range(3):
            thread.take(value)
        thread.close()
    assert taken == [0, 1, 2]
    said = r"on_round broken raised ValueError: one two\x1b; its later errors are not shown"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_function_that_hangs_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    """Values beyond those that may wait are left out and counted, and closing has a limit."""
    begun, goes_on = Event(), Event()

    def hangs(_: int) -> None:
        begun.set()
        goes_on.wait()

    thread = process.Background[int]("f", hangs, waiting_max=2)
    thread.take(0)
    begun.wait()
    for value in range(1, 6):
        thread.take(value)
    with caplog.at_level(logging.WARNING):
        thread.close(seconds=0.05)
    goes_on.set()
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("f has not returned after")
    assert told[1] == "f was too slow: it missed 5 calls"


Limit = Callable[[int], None]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets what this process believes that it may open."""

    def limit(files: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))

    return limit


@pytest.mark.parametrize("files", [16, 64, 256, 1024, 4096, 65536, resource.RLIM_INFINITY])
def test_connections_leave_room_for_files_and_calls_back(limited: Limit, files: int) -> None:
    """Each worker's third descriptor, a group of files in two threads, and some more."""
    limited(files)
    connections = process.connections_allowed()
    workers = connections // process.CONNECTIONS_OF_A_WORKER
    rest = process.descriptors_allowed() - connections - workers
    assert workers >= 1
    assert rest >= 2 * process.files_at_once() + min(32, files // 8)


def test_a_large_limit_is_not_used_up(limited: Limit) -> None:
    """Each connection has a thread, and a group of files its memory."""
    limited(2**20)
    assert process.connections_allowed() == process.CONNECTIONS_MAX
    assert process.files_at_once() == 64


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNREFUSED])
def test_a_lack_of_descriptors_is_told_from_a_refusal(number: int) -> None:
    """A peer that refuses a connection is dead; a process without descriptors knows nothing."""
    error = OSError(number, os.strerror(number))
    assert process.lacks_descriptors(error) is (number != errno.ECONNREFUSED)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is, ä – 水 [red]", "as it is, ä – 水 [red]"),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("one\ntwo\r\nthree\tfour\u2028five", "one two  three four five"),
        ("\x9b31m, \u202eback, \udc80", r"\x9b31m, \u202eback, \udc80"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    """Breaks as spaces, what would turn or hide text by its number; all else stays."""
    assert one_line(text) == shown


@given(st.text())
def test_a_line_can_be_printed(text: str) -> None:
    """Whatever it was; and a second time nothing is left to do."""
    line = one_line(text)
    assert line.isprintable()
    assert one_line(line) == line


@pytest.mark.parametrize(
    ("count_bytes", "of_bytes", "words"),
    [
        (0, 0, "0 bytes"),
        (999, 0, "999 bytes"),
        (10**6, 0, "1 MB"),
        (999_600_000, 0, "1 GB"),
        (120 * 10**6, 4 * 10**9, "0.12 of 4 GB"),
    ],
)
def test_a_size_has_three_digits(count_bytes: int, of_bytes: int, words: str) -> None:
    """A part and its whole have one unit."""
    assert size_in_words(count_bytes, of_bytes) == words


def test_a_log_whose_reader_has_died_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own trouble is no line of a log; a worker wrote forty at the death of its launcher."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    process.set_up_log(logging.WARNING, "%(message)s")
    broken = Mock(write=Mock(side_effect=BrokenPipeError))
    logging.StreamHandler(broken).handle(logging.makeLogRecord({"msg": "left"}))
    assert capsys.readouterr().err == ""


def test_a_log_keeps_its_lines() -> None:
    """A message is one, and only a traceback adds more."""
    error = ValueError("\x1b[2Jfirst\x85second")
    line = "worker %s left"
    record = logging.LogRecord(
        "a", logging.INFO, "", 0, line, ("x\n\x1b[31my",), (ValueError, error, None)
    )
    lines = process.LogFormatter("%(name)s: %(message)s").format(record).split("\n")
    assert lines == [r"a: worker x \x1b[31my left", r"ValueError: \x1b[2Jfirst second"]
