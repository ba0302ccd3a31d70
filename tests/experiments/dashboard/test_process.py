"""The page's process: it serves on a socket of its parent's, and ends when it is let go."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path

import pytest

from downpour.experiments.page_server.process import PageRequest, end_page, page_beside, start_page
from downpour.host.credentials import Credentials
from downpour.network.rpc.server import listen
from downpour.network.rpc.trust import OPEN

RECORDED = Path(__file__).parents[1] / "recorded"


def test_a_page_is_there_while_the_block_runs() -> None:
    """A browser that comes before the process is ready waits for it."""
    listener = listen("127.0.0.1", 0, OPEN)
    port = listener.getsockname()[1]
    with page_beside(str(RECORDED), listener, Credentials()):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
        connection.request("GET", "/api/experiments")
        assert len(json.load(connection.getresponse())["experiments"]) == 2
        connection.close()
    listen("127.0.0.1", port, OPEN).close()


def test_ctrl_c_is_for_the_parent_alone() -> None:
    """A terminal sends it to its own session, also while the page still imports what it needs."""
    process = start_page(str(RECORDED), listen("127.0.0.1", 0, OPEN), Credentials())
    assert os.getsid(process.pid) == process.pid
    end_page(process)
    assert process.returncode is not None


def test_a_page_whose_folder_is_missing_ends_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """With a line that says why; its parent goes on."""
    process = start_page("/nowhere", listen("127.0.0.1", 0, OPEN), Credentials())
    assert process.wait(100) == 2
    end_page(process)
    said = capfd.readouterr().err
    assert said == "downpour: the page has ended: FOLDER = '/nowhere': no such folder\n"


def test_a_request_survives_its_line() -> None:
    """The token goes through it, and no command line."""
    request = PageRequest(
        location="s3://a/b", host="::1", descriptor=7, credentials=Credentials(token="x" * 20)
    )
    assert PageRequest.from_line(request.to_line()) == request
