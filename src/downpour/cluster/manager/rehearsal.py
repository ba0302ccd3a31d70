"""Tries a user's code in a separate process, before the manager runs any of it.

That process also shows whether the training depends on the process: it takes the trial's steps
again, with other hashes and another clock (`learning/training/repeating.py`).

The manager itself reports exceptions, because it runs the same code later (`work.prepare`). But a
task that calls `os._exit` or crashes the interpreter ends its process, and a cluster's manager
serves other users, too. So a child process first prepares the experiment as the manager would, and
takes the trial's steps. If it dies, its last words name the line; else the manager skips the trial.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import TYPE_CHECKING, Any

from downpour.base.errors import SpecError, one_line
from downpour.cluster.options import HASH_SEED
from downpour.core.spec import Spec
from downpour.host.machine import fail_instead_of_dying, kills, let_be_killed_first, told_limit
from downpour.host.process import end_session, end_with_parent
from downpour.learning.blame import ending_told, place_of
from downpour.learning.tasks import agreement

if TYPE_CHECKING:
    from downpour.cluster.manager.global_model import GlobalModel
    from downpour.learning.training.step import StepCost

log = logging.getLogger(__name__)

_FAULT = re.compile(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)$', re.MULTILINE
)
_EXIT = "downpour-exit: "


class Rehearsal:
    """The preparation of an experiment in a child process, before the manager's own."""

    def __init__(self, spec: Spec, folder: Path, data_dir: Path | None) -> None:
        self._spec = spec
        self._folder = folder
        self._asked = {
            "spec": spec.to_toml(),
            "folder": str(folder),
            "data_dir": str(data_dir or ""),
            "path": sys.path,
        }
        self._found: dict[str, Any] = {}

    def rehearse(self) -> None:
        """Prepare it, under other hashes; returns if the manager can safely do the same."""
        hashes = next(seed for seed in "12" if seed != os.environ.get(HASH_SEED))
        self._found = _carried_out(self._spec, self._asked, hashes)
        # Otherwise the manager's own trial warns.
        for line in self._found["warnings"] if self.cost else ():
            log.warning("%s", line)

    @property
    def cost(self) -> StepCost | None:
        """The cost of a step, if the trial has succeeded there as the manager's own would."""
        from downpour.learning.training.step import StepCost

        cost = self._found.get("cost")
        # The child has drawn the network, and does not know the file that it would begin from.
        return None if not cost or self._spec.init_from else StepCost(**cost)

    def agrees(self, key: str, drawn: GlobalModel | None) -> bool:
        """Compare what the manager prepared; says whether the trial's steps were equal in both."""
        from downpour.learning.training.repeating import RULE
        from downpour.learning.training.trial import report

        what = self._difference(self._found, key, drawn)
        own = os.environ.get(HASH_SEED, "random")
        if what and own != "random":
            again = _carried_out(self._spec, self._asked, own)
            if again and not self._difference(again, key, drawn):
                what += ", through hash() or the order of a set: Python's hash seed decides these"
        if what and drawn is not None:
            report(drawn.tried, f"gives different bytes in another process: {what}; {RULE}")
        return not what and drawn is not None and bool(drawn.looks and self._found.get("steps"))

    def _difference(self, found: dict[str, Any], key: str, drawn: GlobalModel | None) -> str:
        from downpour.learning.training.repeating import difference

        if not found:  # the manager has met the same error
            return ""
        try:
            agreement.check_same_data(self._spec.replace(data_key=found["key"]), self._folder, key)
        except SpecError:
            return "its examples or labels differ"
        return difference(drawn.looks, found["steps"]) if drawn and drawn.looks else ""


def _carried_out(spec: Spec, asked: dict[str, Any], hashes: str) -> dict[str, Any]:
    """Prepare an experiment in a child process; returns what it found, or nothing if it failed."""
    # Use a file rather than a pipe, because processes that the user's code starts would hold a pipe
    # open as long as they live. Use a separate session, so that we can end them, too.
    with TemporaryFile("w+", errors="replace") as said, NamedTemporaryFile("w+") as found:
        asked, killed = {**asked, "found": found.name}, kills()
        with subprocess.Popen(
            [sys.executable, "-m", "downpour.cluster.manager.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            text=True,
            start_new_session=True,
            env={**os.environ, HASH_SEED: hashes},
        ) as child:
            let_be_killed_first(child.pid)
            child.communicate(json.dumps(asked))
        end_session(child.pid)
        if child.returncode == -signal.SIGKILL and kills() > killed:
            # The manager's own trial fails before it takes more than there is.
            line = "could not try %s apart: out of memory (%s)"
            log.warning(line, spec.trained_code[1], told_limit())
            return {}
        said.seek(0)
        if child.returncode:
            raise SpecError(*spec.trained_code, _last_words(child.returncode, said.read()))
        return dict(json.loads(found.read() or "{}"))


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

    spec, folder = Spec.from_toml(asked["spec"]), Path(asked["folder"])
    data_dir = Path(asked["data_dir"]) if asked["data_dir"] else None
    key = agreement.prepare_data(spec, folder, data_dir)
    data = agreement.open_data(spec, folder, key)
    shards, _ = divide(
        spec, data.labels, data.facts.train_samples, spec.shards or 1, data.block_ends
    )
    # Now, because torch reserves memory that it never uses.
    fail_instead_of_dying()
    drawn = GlobalModel(spec, data)
    logging.getLogger("downpour").addHandler(warnings := _Warnings())
    cost = drawn.check_trains(shards, again=True)
    found = {
        "key": key,
        "steps": drawn.circumstances,
        "cost": None if cost is None else asdict(cost),
        "warnings": warnings.lines,
    }
    Path(asked["found"]).write_text(json.dumps(found), encoding="utf-8")


class _Warnings(logging.Handler):
    """Collects the lines of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


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
