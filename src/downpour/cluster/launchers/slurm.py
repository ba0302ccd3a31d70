"""Runs workers as Slurm jobs, and the manager where the command runs, on a login node.

A plan's first workers form one job array. An array cannot grow, so a later worker gets its own.
"""

import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from downpour.base.errors import ComeAgain, LaunchError, last_line
from downpour.cluster.launchers import Ended, Launcher, LauncherKind, LaunchPlan, slurm_script
from downpour.cluster.launchers.cluster import PlacedCluster
from downpour.cluster.launchers.slurm_script import ArrayTask, SlurmOptions
from downpour.cluster.options import WorkerOptions, training_environment
from downpour.host.child import LastWill

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
CLOSE_SECONDS = 90.0
"""Slurm kills tasks that do not end within its KillWait, which is 30 s by default."""
_LOOK_SECONDS = 0.2
_TAIL_BYTES = 4096
_HOPELESS = {
    "AccountNotAllowed",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "QOSNotAllowed",
}
"""Slurm's reasons for tasks that never start. sbatch accepts them, unless the site forbids that."""
_ELSEWHERE = ("10.255.255.255", 9)
_Place = tuple[int, int]
"""A job's ID, and the index of one of its tasks."""


def on_slurm(options: SlurmOptions | None = None) -> Launcher:
    """Return a launcher that uses Slurm, for `downpour.run(spec, on=on_slurm(options))`."""
    return lambda plan: PlacedCluster(plan, SlurmEngine(options or SlurmOptions()))


class SlurmEngine:
    """Starts each worker as a task of a job array, and learns from squeue which have ended."""

    def __init__(self, options: SlurmOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._now = now
        self.run = f"{slurm_script.JOB_NAME}-{secrets.token_hex(4)}"
        self.manager_host = options.manager_host or reachable_host()
        self._at_once = 1
        self._waiting: list[WorkerOptions] = []
        self._places: dict[str, _Place] = {}
        self._stopped: set[str] = set()
        self._over: dict[str, Ended] = {}
        self._shared = Path()
        self._last_will: LastWill | None = None
        self._asking: Future[tuple[dict[str, _Place], list[ArrayTask]]] | None = None
        self._asked_seconds = -POLL_SECONDS
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="squeue")

    def script(self, workers: Sequence[WorkerOptions], environment: Mapping[str, str]) -> str:
        """Return the batch script that starts these workers; it does not contain the token."""
        files = replace(workers[0].credentials, token="").to_environment()
        return slurm_script.script(workers, self._options, {**environment, **files}, self.run)

    def planned(self, plan: LaunchPlan) -> str:
        """Return the script for a plan's first workers; the manager's port is not known yet."""
        plan, address = plan.reached_at(self.manager_host), f"{self.manager_host}:PORT"
        workers = [plan.worker(number, address) for number in range(1, plan.workers + 1)]
        return self.script(workers, training_environment(plan.threads))

    def check(self, plan: LaunchPlan) -> None:
        """Ask Slurm whether it accepts the script; an error quotes Slurm's own words."""
        self._at_once = plan.workers
        slurm_script.test(self.planned(plan))
        self._last_will = LastWill(slurm_script.cancelling(self.run))

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Submit a worker; the plan's first workers wait here until the last of them comes."""
        del log  # Slurm's users look for slurm-JOB_TASK.out, which is beside it
        self._shared = Path(worker.shared)
        self._stopped.discard(worker.name)
        self._waiting.append(worker)
        if len(self._waiting) < self._at_once:
            return
        workers, self._waiting, self._at_once = self._waiting, [], 1
        token = {"DOWNPOUR_TOKEN": worker.credentials.token} if worker.credentials.token else {}
        try:
            job = slurm_script.submit(self.script(workers, environment), token)
        except LaunchError as error:
            ended = Ended(error.exit_status, str(error))
            self._over |= {one.name: ended for one in workers}
            return
        self._places |= {one.name: (job, slurm_script.number_of(one.name)) for one in workers}

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers that had ended at Slurm's last answer; another thread asks again."""
        if self._asking is not None and self._asking.done():
            self._take(self._asking)
            self._asking = None
        if self._asking is None and self._now() - self._asked_seconds >= POLL_SECONDS:
            self._asked_seconds = self._now()
            places = dict(self._places)
            self._asking = self._asker.submit(lambda: (places, slurm_script.tasks()))
        over, self._over = self._over, {}
        return over

    def stop(self, name: str) -> None:
        """Cancel a worker's task, which tells it to leave."""
        self._stopped.add(name)
        if name in self._places:
            job, index = self._places[name]
            for task in self._own(slurm_script.tasks()):
                if (task.job, task.index) == (job, index):
                    slurm_script.cancel([f"{job}_{index}"])

    def close(self) -> None:
        """Cancel all jobs of this run, and wait until they have ended."""
        self._asker.shutdown(cancel_futures=True)
        deadline, cancelled, reason = self._now() + CLOSE_SECONDS, set[str](), "no answer"
        while self._now() < deadline:
            try:
                left = [task for task in self._own(slurm_script.tasks()) if not task.has_ended]
                if not left:
                    if self._last_will is not None:
                        self._last_will.revoke()
                    return
                new = {str(task.job) for task in left} - cancelled
                slurm_script.cancel(new)
                cancelled |= new
                reason = f"{left[0].job}_{left[0].index} is {left[0].state}"
            except LaunchError as error:
                reason = str(error)
            time.sleep(_LOOK_SECONDS)
        jobs = " ".join(sorted({str(job) for job, _ in self._places.values()}))
        raise LaunchError(f"some jobs may still run ({reason}); stop them with scancel {jobs}")

    def _own(self, tasks: Iterable[ArrayTask]) -> list[ArrayTask]:
        """Return this run's tasks: Slurm reuses the IDs of jobs, but comments name the run."""
        return [task for task in tasks if task.comment == self.run]

    def _take(self, asked: Future[tuple[dict[str, _Place], list[ArrayTask]]]) -> None:
        """Note the ended tasks; tasks that came while we asked Slurm stay."""
        try:
            places, tasks = asked.result()
        except LaunchError as error:
            log.warning("%s; asking again", error)
            return
        found = {(task.job, task.index): task for task in tasks}
        for name, place in places.items():
            ended = self._end_of(name, place, found.get(place))
            if ended is not None and self._places.get(name) == place:
                del self._places[name]
                self._over[name] = ended

    def _end_of(self, name: str, place: _Place, task: ArrayTask | None) -> Ended | None:
        """Return how a worker has ended; None while Slurm runs it, or will run it."""
        if task is None:
            return Ended(None, f"Slurm no longer knows {place[0]}_{place[1]}")
        if not task.has_ended:
            return self._waits_in_vain(task)
        if task.state == "CANCELLED" or name in self._stopped:
            return Ended(0, "its task was cancelled")
        if task.state == "COMPLETED":
            return Ended(ComeAgain.exit_status, "Slurm told it to leave")
        if task.state == "FAILED" and task.status is not None:
            return Ended(task.status, self._last_words(place))
        return Ended(None, f"{task.state}, {task.reason}")

    def _waits_in_vain(self, task: ArrayTask) -> Ended | None:
        """Cancel a task that Slurm has accepted but will never start."""
        if task.state != "PENDING" or task.reason not in _HOPELESS:
            return None
        with suppress(LaunchError):
            slurm_script.cancel(f"{one.job}_{one.index}" for one in self._own([task]))
        return Ended(2, f"Slurm will not start it: {task.reason}")

    def _last_words(self, place: _Place) -> str:
        file = self._shared / "logs" / f"slurm-{place[0]}_{place[1]}.out"
        with suppress(OSError), file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return last_line(opened.read().decode(errors="replace"))
        return ""


def reachable_host() -> str:
    """Return this machine's address as others reach it: the one of its name, or of its route."""
    named: list[str] = []
    with suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        named = [str(address[4][0]) for address in found]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(_ELSEWHERE)  # sends nothing
        named.append(str(line.getsockname()[0]))
    reached = [host for host in named if not ip_address(host.partition("%")[0]).is_loopback]
    return reached[0] if reached else "127.0.0.1"


KIND = LauncherKind(
    title="Slurm",
    options=SlurmOptions,
    make=on_slurm,
    planned=lambda options, plan: SlurmEngine(options).planned(plan),
    labels=lambda options: [options.place],
)
