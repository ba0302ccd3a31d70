"""The page's process: it serves on a socket of its parent's, and ends when it is let go."""

import http.client
import json
import os
from pathlib import Path
from threading import Event

import pytest

from downpour.experiments.page_server import process
from downpour.host.paths import Credentials
from downpour.network.rpc.server import listen
from downpour.network.rpc.trust import OPEN

RECORDED = Path(__file__).parents[2] / "recorded"


@pytest.mark.slow
def test_a_page_is_there_while_the_block_runs() -> None:
    """A browser that comes before the process is ready waits for it; the user is told later."""
    listener, told = listen("127.0.0.1", 0, OPEN), Event()
    port = listener.getsockname()[1]
    with process.page_beside(str(RECORDED), listener, Credentials(), told.set):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        connection.request("GET", "/api/experiments")
        assert len(json.load(connection.getresponse())["experiments"]) == 4
        connection.close()
        assert told.wait(100)
    listen("127.0.0.1", port, OPEN).close()


@pytest.mark.slow
def test_ctrl_c_is_for_the_parent_alone() -> None:
    """A terminal sends it to its own session, also while the page still imports what it needs."""
    page = process.start_page(str(RECORDED), listen("127.0.0.1", 0, OPEN), Credentials())
    assert os.getsid(page.process.pid) == page.process.pid
    process.end_page(page)
    assert page.process.returncode is not None


def test_a_page_whose_folder_is_missing_ends_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """With a line that says why; its parent goes on."""
    page = process.start_page("/nowhere", listen("127.0.0.1", 0, OPEN), Credentials())
    assert not process.is_served(page)
    assert page.process.wait(100) == 2
    process.end_page(page)
    said = capfd.readouterr().err
    assert said == "downpour: the page has ended: FOLDER = '/nowhere': no such folder\n"


def test_nobody_is_sent_to_a_page_that_a_library_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Uvicorn 0.46 does not know one of our settings: a line says so, and no traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import uvicorn\nreal = uvicorn.Config.__init__\n"
        "def older(self, app, *, ssl_context_factory='', **known):\n"
        "    if ssl_context_factory != '': raise TypeError('unexpected ssl_context_factory')\n"
        "    real(self, app, **known)\n"
        "uvicorn.Config.__init__ = older\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    page = process.start_page(str(RECORDED), listen("127.0.0.1", 0, OPEN), Credentials())
    assert not process.is_served(page)
    assert page.process.wait(100) == 1
    process.end_page(page)
    reason = "internal error: TypeError: unexpected ssl_context_factory"
    assert capfd.readouterr().err == f"downpour: the page has ended: {reason}\n"


def test_a_request_survives_its_line() -> None:
    """The token goes through it, and no command line."""
    request = process.PageRequest(
        location="s3://a/b", host="::1", descriptor=7, credentials=Credentials(token="x" * 20)
    )
    assert process.REQUEST.validate_json(process.REQUEST.dump_json(request)) == request
