"""What a process logs and prints becomes lines of its log, without secrets."""

import io
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.files.log_places import LogLine, logs_of
from downpour.files.process_log import PrintedLines, ProcessLog, kept_log
from downpour.files.store import SharedDirectory

LOGGER = logging.getLogger("tests.files.logs")


def fail(text: str) -> None:
    """Fail as a user's code may."""
    raise ValueError(text)


def lines_in(folder: Path) -> list[LogLine]:
    """Return all lines that are kept in a directory; none is damaged."""
    place = logs_of(SharedDirectory(folder))
    raw = [line for piece in place.pieces() for line in place.read(piece.name, 0).splitlines()]
    lines = [LogLine.of(line) for line in raw]
    assert None not in lines
    return [line for line in lines if line is not None]


def test_a_log_has_messages_prints_and_whole_tracebacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is printed is still printed; afterwards nothing of it is left in the process."""
    before = sys.stdout, sys.stderr, list(logging.getLogger().handlers)
    with kept_log(SharedDirectory.open(tmp_path, create=True), "worker-1"):
        print("from a task")  # noqa: T201
        print("half a ", end="")  # noqa: T201
        print("line", file=sys.stdout)  # noqa: T201
        try:
            fail("bad\nnews")
        except ValueError:
            LOGGER.exception("the task %s", "failed")
    assert (sys.stdout, sys.stderr, list(logging.getLogger().handlers)) == before
    assert capsys.readouterr().out == "from a task\nhalf a line\n"
    begins, *said, ends = lines_in(tmp_path)
    assert begins.text.startswith("begins")
    assert [(line.source, line.text) for line in said[:2]] == [
        ("stdout", "from a task"),
        ("stdout", "half a line"),
    ]
    assert (said[2].level, said[2].text) == ("error", "the task failed")
    assert said[2].trace.startswith("Traceback")
    assert said[2].trace.endswith("ValueError: bad\nnews")
    assert (ends.text, ends.name) == ("ends", "worker-1")


@pytest.mark.parametrize(
    ("error", "text", "has_trace"),
    [
        (SpecError("port", 7, "is in use"), "ends: port = 7: is in use", False),
        (ZeroDivisionError("x"), "ends: ZeroDivisionError: x", True),
        (SystemExit(3), "ends: SystemExit", False),
    ],
)
def test_a_log_says_why_its_process_ends(
    tmp_path: Path, error: BaseException, text: str, *, has_trace: bool
) -> None:
    """A user's mistake takes one line; a defect has its traceback."""
    with (
        pytest.raises(type(error)),
        kept_log(SharedDirectory.open(tmp_path, create=True), "manager"),
    ):
        raise error
    last = lines_in(tmp_path)[-1]
    assert (last.text, bool(last.trace)) == (text, has_trace)


def test_of_a_users_own_process_only_this_package_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's own messages and prints are not the cluster's."""
    monkeypatch.setattr(logging.getLogger("downpour"), "level", logging.INFO)
    with kept_log(SharedDirectory.open(tmp_path, create=True), "launcher", owns_process=False):
        print("mine")  # noqa: T201
        LOGGER.error("mine, too")
        logging.getLogger("downpour.x").warning("ours")
    assert [line.text for line in lines_in(tmp_path)[1:-1]] == ["ours"]


def test_a_program_without_logging_still_sees_warnings(tmp_path: Path) -> None:
    """A callback's error reaches a plain script's standard error, as Python does it by itself."""
    code = (
        "import logging, pathlib, sys\n"
        "from downpour.files.process_log import kept_log\n"
        "from downpour.files.store import SharedDirectory\n"
        "shared = SharedDirectory(pathlib.Path(sys.argv[1]))\n"
        "with kept_log(shared, 'launcher', owns_process=False):\n"
        "    logging.getLogger('downpour.some').warning('on_round raised')\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stderr == "on_round raised\n"


def test_no_line_holds_a_secret(tmp_path: Path) -> None:
    """Neither in a message nor in a traceback, and no password of a URL."""
    with kept_log(
        SharedDirectory.open(tmp_path, create=True),
        "worker-1",
        ("tok3n-of-ours", "tok3n-of-ours-too"),
    ):
        print("tok3n-of-ours-too, s3://me:hunter2@host/x")  # noqa: T201
        try:
            fail("tok3n-of-ours")
        except ValueError:
            LOGGER.exception("refused with tok3n-of-ours")
    whole = b"".join(path.read_bytes() for path in (tmp_path / "logs/processes").iterdir())
    assert b"tok3n" not in whole
    assert b"hunter2" not in whole
    assert lines_in(tmp_path)[1].text == "***, s3://me:***@host/x"


def test_lines_that_were_dropped_are_counted() -> None:
    """Once the log takes lines again, it says how many are missing."""
    taken: list[bytes] = []
    room = False

    def put(line: bytes) -> bool:
        if room:
            taken.append(line)
        return room

    log = ProcessLog("worker-1", (), put, clock=lambda: 1.0)
    log.say("stdout", "lost")
    log.say("stdout", "lost, too")
    room = True
    log.say("stdout", "here")
    written = b"".join(taken).splitlines()
    texts = [line.text for line in map(LogLine.of, written) if line is not None]
    assert texts == ["2 lines are missing, because the log did not accept them in time", "here"]


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (["a\nb\n"], ["a", "b"]),
        (["a", "b\n", "\n", "c"], ["ab"]),
        (["10 %\r50 %\r", "100 %\n"], ["100 %"]),
        (["windows\r\n"], ["windows"]),
        (["x" * 9_000], ["x" * 9_000]),
    ],
)
def test_a_progress_bar_is_its_last_state(printed: list[str], said: list[str]) -> None:
    """Lines are whole ones, and one that never ends does not stay in memory."""
    stream, heard = io.StringIO(), list[str]()
    lines = PrintedLines(stream, heard.append)
    for text in printed:
        lines.write(text)
    assert heard == said
    assert stream.getvalue() == "".join(printed)
    assert lines.getvalue() == stream.getvalue()


def test_a_log_that_cannot_be_kept_disturbs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file lies where its folder should: the process prints and ends as it would without it."""
    (tmp_path / "logs").write_text("")
    with kept_log(SharedDirectory(tmp_path), "worker-1"):
        print("still here")  # noqa: T201
        LOGGER.warning("and here")
    assert "still here" in capsys.readouterr().out


def test_a_message_that_cannot_be_formatted_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a user's call must not end the user's training."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    taken: list[bytes] = []

    def put(line: bytes) -> bool:
        taken.append(line)
        return True

    record = LOGGER.makeRecord("x", logging.INFO, "f", 1, "%d", ("three",), None)
    ProcessLog("worker-1", (), put).emit(record)
    assert taken == []
    assert capsys.readouterr().out == ""


def test_a_process_outlives_the_reader_of_its_output() -> None:
    """What it prints still becomes lines of its log."""
    reading, writing = os.pipe()
    os.close(reading)
    said: list[str] = []
    with suppress(BrokenPipeError), open(writing, "w", buffering=1) as broken:
        printed = PrintedLines(broken, said.append)
        print("one", file=printed, flush=True)
        print("two", file=printed, flush=True)
    assert said == ["one", "two"]
