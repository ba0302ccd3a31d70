"""Tries a user's code in a separate process, before the manager runs any of it.

The manager itself reports exceptions, because it runs the same code later (`work.prepare`). But a
task that calls `os._exit` or crashes the interpreter ends its process, and a cluster's manager
serves other users, too. So a child process first prepares the experiment as the manager would, and
takes the trial's steps. If it dies, its last words name the line.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.host.sessions import end_session
from downpour.host.signals import end_with_parent
from downpour.host.text import one_line
from downpour.learning.blame import ending_told, place_of

_FAULT = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)$', re.MULTILINE
)
_EXIT = "downpour-exit: "


def rehearse(spec: Spec, folder: Path, data_dir: Path | None) -> None:
    """Prepare an experiment in a child process; returns if the manager can safely do the same.

    Args:
        spec: names the user's code.
        folder: the folder of prepared datasets.
        data_dir: a folder of datasets, if there is one.

    Raises:
        SpecError: the user's code ends its process; says how, and where.
    """
    asked = {
        "spec": spec.to_toml(),
        "folder": str(folder),
        "data_dir": str(data_dir or ""),
        "path": sys.path,
    }
    # Use a file rather than a pipe, because processes that the user's code starts would hold a pipe
    # open as long as they live. Use a separate session, so that we can end them, too.
    with TemporaryFile("w+", errors="replace") as said:
        with subprocess.Popen(
            [sys.executable, "-m", "downpour.cluster.manager.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            text=True,
            start_new_session=True,
        ) as child:
            child.communicate(json.dumps(asked))
        end_session(child.pid)
        said.seek(0)
        if child.returncode:
            raise SpecError(*spec.trained_code, _last_words(child.returncode, said.read()))


def _last_words(status: int, said: str) -> str:
    """Say how a child died, and in which line of the user's code."""
    told = [line for line in said.splitlines() if line.startswith(_EXIT)]
    if told:
        return one_line(told[-1].removeprefix(_EXIT))
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    where = (place_of(**found.groupdict()) for found in _FAULT.finditer(said))
    place = next(filter(None, where), "")
    return f"ends its process {how}{f' ({place})' if place else ''}"


def _say(words: str) -> None:
    sys.stderr.write(f"{_EXIT}{words}\n")
    sys.stderr.flush()


def _prepare(asked: dict[str, Any]) -> None:
    from downpour.cluster.manager.global_model import GlobalModel
    from downpour.core.splitters import divide
    from downpour.learning import tasks

    spec, folder = Spec.from_toml(asked["spec"]), Path(asked["folder"])
    data_dir = Path(asked["data_dir"]) if asked["data_dir"] else None
    key = tasks.prepare_data(spec, folder, data_dir)
    data = tasks.open_data(spec, folder, key)
    shards, _ = divide(spec, data.labels, data.facts.train_samples, spec.shards or 1)
    GlobalModel(spec, data).check_trains(shards)


def main() -> None:
    """Prepare the experiment on standard input; leave any error of the user's to the manager."""
    end_with_parent(signal.SIGKILL)
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    faulthandler.enable()
    end = os._exit
    os._exit = ending_told(_say)  # type: ignore[assignment]
    # The manager meets the same error, and reports it with its line.
    with suppress(Exception, SystemExit, KeyboardInterrupt):
        _prepare(asked)
    end(0)  # in spite of threads from the user's code


if __name__ == "__main__":
    main()
