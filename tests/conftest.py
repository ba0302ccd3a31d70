"""What holds for all tests: how long an example takes decides nothing, for machines are noisy.

Several processes may run them (`pytest -n`), each with folders and ports of its own.
"""

import gc
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling
from xdist.workermanage import WorkerController

# Before torch is imported: with as many processes as cores, each with as many threads, threads spin
# while they wait for one another. What torch computes with is in the specs.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Copies of datasets that processes of tests make; each run starts without any.
_OWN = tempfile.TemporaryDirectory(prefix="downpour-own-")
os.environ["DOWNPOUR_LOCAL"] = _OWN.name

# Examples of a property: few while somebody waits, more where nobody does.
IN_CI = bool(os.environ.get("CI"))
settings.register_profile(
    "untimed",
    settings.get_profile("ci" if IN_CI else "default"),
    max_examples=100 if IN_CI else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


_DAEMONS = {
    "docker": "docker",
    "compose": "docker",
    "kubernetes": "docker",
    "slurm": "slurm",
    "ssh": "ssh",
    "ray": "ray",
    "ray_cluster": "ray",
}
"""Whose tests start a daemon, by what their IDs say.

A machine has one engine of containers, and `auto` finds whatever Ray cluster runs on it.
"""


_APART = {"cluster/launchers", "experiments/studies"}
"""Rooms whose files share nothing that takes long to make."""

_LONG = (
    "docker",
    "cluster/launchers/test_leftovers.py",
    "examples/test_real_processes.py",
    "experiments/replay",
    "cluster/launchers/test_cluster.py",
    "slurm",
    "ray",
    "ssh",
    "chaos/test_partitions.py",
    "chaos/test_hand_over.py",
    "files/objects",
    "experiments/studies/test_papers.py",
    "chaos/test_kill.py",
    "chaos/test_soak.py",
)
"""What takes minutes, the longest first: begun in the end, it would go on while others are done."""


class _ByRoom(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs a room's tests, and so makes what they share once.

    A room is a folder or a file of a wing, as in the package. Tests of one kind of daemon are in
    one group wherever they stand, so that it is started once. The node IDs say both; groups by mark
    (`--dist loadgroup`) do nothing with pytest 9.2 and pytest-xdist 3.8
    (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        daemons = {_DAEMONS[word] for word in re.findall(r"\w+", nodeid) if word in _DAEMONS}
        file = nodeid.partition("::")[0].split("/")
        room = "/".join(file[1:3])
        return min(daemons, default="/".join(file[1:]) if room in _APART else room)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process what takes longest of what is left."""
        if (first := next((room for room in _LONG if room in self.workqueue), None)) is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Let `--dist loadscope` mean rooms, and kinds of daemons."""
    return _ByRoom(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector a million objects of tests and modules, which all stay.

    It would look through them a dozen times while they come, for 3 s of a core in each process, and
    again whenever a test's own objects are many, or a process forks.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See that each slow test's file says so, because `make test-slow` reads no other."""
    files = {item.path for item in items if item.get_closest_marker("slow")}
    unsaid = [str(file) for file in sorted(files) if "mark.slow" not in file.read_text("utf-8")]
    if unsaid:
        raise pytest.UsageError(f"no mark.slow in {', '.join(unsaid)}")


_SECONDS: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of each folder, whichever process ran its tests."""
    _SECONDS[report.nodeid.partition("::")[0].rpartition("/")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in CI which folders take the time."""
    if IN_CI:
        terminalreporter.section("seconds by folder")
        for seconds, folder in sorted(((s, f) for f, s in _SECONDS.items()), reverse=True)[:40]:
            terminalreporter.write_line(f"{seconds:8.1f} {folder}")


def pytest_configure(config: pytest.Config) -> None:
    """Give a process's temporary folder a short name: long paths are cut in what users read."""
    if given := getattr(config, "workerinput", None):
        folder, process = config.option.basetemp, given["workerid"]
        config.option.basetemp = folder.replace(f"popen-{process}", process.removeprefix("gw"))


@pytest.fixture(scope="module")
def forked_clusters() -> Iterator[None]:
    """Let the clusters of a file start at once, from a process that has imported torch.

    Each would import it for three seconds of a core, and so would each rehearsal of a user's code
    by a manager that is in this process. They are what users have, and how they start is what
    `tests/cluster/launchers` shows.
    """
    from downpour.cluster.manager import rehearsal
    from downpour.host import child
    from tests.chaos.forked import Forks

    with pytest.MonkeyPatch.context() as patched:
        for module in (child, rehearsal):
            patched.setattr(module, "subprocess", Forks())
        yield


Allow = Callable[..., None]
"""Is given a folder, and modules in it."""


@pytest.fixture
def allowing() -> Iterator[Allow]:
    """Allow a user's modules as `downpour.allow` does, and forget them with the test."""
    from downpour.learning.allowlist import FOLDERS, VARIABLE, allow_in

    with pytest.MonkeyPatch.context() as before:
        for variable in (VARIABLE, FOLDERS):
            before.setenv(variable, "")  # so that what is set here is undone, too
            before.delenv(variable)
        before.setattr("sys.path", [*sys.path])
        yield lambda folder, *modules: allow_in([folder], modules)
