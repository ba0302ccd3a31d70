"""The worker as a process: it opens the shared directory, registers, and works until a signal.

`WorkerMetrics` wraps the function that runs tasks, so it hears of all; it imports no torch.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock, Thread

from downpour.base.errors import OtherDirectory, SpecError, Untrusted
from downpour.base.names import AUTO, CPU
from downpour.base.options import CACHE_VARIABLE, loaders_of
from downpour.base.values import Update
from downpour.cluster.options import WorkerOptions, keep_memory, wait_passively
from downpour.cluster.worker.agent import RunTask, ShownWorker, WorkerAgent
from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.files.process_log import kept_log
from downpour.files.store import SharedDirectory
from downpour.files.store.shared_directory import open_location
from downpour.host import machine, process
from downpour.host.child import NOTICE_SECONDS, notice_at
from downpour.host.paths import known_secrets
from downpour.learning.auto import devices_for
from downpour.network.discovery import Managers, awaiting, files_may_come
from downpour.network.metrics import Metrics, MetricsEndpoint, Timing, counter, gauge, summary
from downpour.network.rpc import Address, ManagerClient, Trust, listen, parse_address, serve_worker
from downpour.network.rpc.messages import TaskMessage

log = logging.getLogger(__name__)

_LOG_SECONDS = 2.0
_EVERYWHERE = "::"
_EVERYWHERE_V4 = "0.0.0.0"  # noqa: S104 - only where trust is asked for


def run_worker(
    options: WorkerOptions,
    ready: Callable[[Address, Address, str], None],
    measured: Callable[[str], None] = lambda _: None,
    obey: Callable[[WorkerAgent], None] | None = None,
) -> None:
    """Work until a signal stops it; calls `ready` once it is registered.

    The worker waits for a manager, a folder or a token that does not exist yet. If the shared
    directory names another manager as the leader, the worker turns to that one.

    `ready` gets its address, the manager's, and the name of its device. If the worker serves
    metrics, `measured` then gets their URL. `obey` gets the agent before it registers; the agent's
    `leave` ends this call. Without `obey`, signals end it, which needs the main thread.
    """
    # Do this first, because torch reads these settings when it is loaded.
    wait_passively()
    keep_memory()
    options = _complete(options)
    if options.cache:  # for the loaders, too
        os.environ[CACHE_VARIABLE] = options.cache
    given = parse_address(options.manager, field="manager") if options.manager else None
    wait = awaiting(options.connect_seconds, when=files_may_come)
    trust = wait(Trust.load, options.credentials)
    if given is None:
        _try_ports(options, trust)
    shared = wait(lambda: open_location(options.shared, create=False))
    with ExitStack() as ending:
        if obey is None:  # a user's process has one log for all threads
            known = known_secrets(options.credentials)
            ending.enter_context(kept_log(shared, options.name, known))
        managers = Managers(shared, given, trust)
        ending.callback(managers.close)
        manager = awaiting(options.connect_seconds)(managers.first)
        host = options.host or listening_host(manager.address, trust)
        agent, metrics = _make_agent(options, managers, manager, shared, ending)
        # A user's own process keeps its limits. Drivers of accelerators reserve memory that they
        # never use. So does torch, which is loaded by now.
        if obey is None and options.device == CPU:
            machine.fail_instead_of_dying()
        # Start the server before the worker registers, because the manager first calls back.
        server = serve_worker(agent, host, options.port, trust=trust).start()
        ending.callback(server.stop)
        _heed(options, agent, obey)
        endpoint = _measured(options, metrics, server.address.host, trust)
        if endpoint is not None:
            ending.callback(endpoint.close)
        where = advertised(options.advertise, host, server.address.port)
        register = awaiting(options.connect_seconds, agent.look_elsewhere)
        here = register(_register, agent, managers, where)
        log.info("%s serves at %s for the manager at %s", agent.name, here, agent.manager)
        ending.callback(_announce(options.ready_file, here))
        ready(here, agent.manager, options.device)
        if endpoint is not None:
            measured(endpoint.start().url)
        hangs = _kill_this if obey is None else None
        agent.run(options.alone_seconds or math.inf, partial(_get_ready, options.device), hangs)


def _heed(
    options: WorkerOptions, agent: WorkerAgent, obey: Callable[[WorkerAgent], None] | None
) -> None:
    """Let a notice tell the worker to leave, and signals or the caller; returns at once."""
    if obey is None:
        process.on_leaving(lambda _: agent.leave(options.drain_seconds))
        process.on_interrupt(agent.leave)
    else:
        obey(agent)

    def wait(is_there: Callable[[], bool]) -> None:
        while not is_there():
            time.sleep(NOTICE_SECONDS)
        log.warning("%s: this machine will be taken, leaving", agent.name)
        agent.leave(options.drain_seconds)

    if options.notice:
        Thread(target=wait, args=(notice_at(options.notice),), daemon=True).start()


def _kill_this() -> None:
    """Kill this process, whose task hangs in a user's code; its log is written before."""
    time.sleep(_LOG_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _get_ready(device: str) -> None:
    """Import what tasks will need, and open the device: both take seconds, and no task is here yet.

    A fork of a fork server has imported the packages already.
    """
    process.import_packages(os.environ.get(process.PACKAGES, "").split())
    if device != CPU:
        import torch

        with suppress(RuntimeError):  # a task meets it again, and reports it
            torch.empty(1, device=device)


def listening_host(manager: Address, trust: Trust) -> str:
    """Return where to listen: on loopback if the manager is there, else on all interfaces.

    A name that does not resolve would else end in a refusal to listen everywhere without a token.
    """
    if manager.is_loopback:
        return "::1" if ":" in manager.host else "127.0.0.1"
    try:
        if trust.is_open:  # or else we wait, because a name may come later
            socket.getaddrinfo(manager.host, manager.port)
    except (socket.gaierror, UnicodeError) as error:
        raise SpecError("manager", str(manager), "its host name does not resolve") from error
    return _EVERYWHERE if socket.has_dualstack_ipv6() else _EVERYWHERE_V4


def advertised(asked: str, listening: str, port: int) -> tuple[str, int]:
    """Return the address for calls back; an empty host stands for the one that the manager sees."""
    if asked:
        address = parse_address(asked, field="advertise", default_port=port)
        return address.host, address.port
    return ("" if listening in {_EVERYWHERE, _EVERYWHERE_V4} else listening), port


def default_name(environment: Mapping[str, str]) -> str:
    """Return a name that no other worker has; in Slurm, a requeued task keeps its name."""
    if job := environment.get("SLURM_JOB_ID"):
        node = environment.get("SLURMD_NODENAME") or socket.gethostname()
        return f"{node}-{job}-{environment.get('SLURM_PROCID', '0')}"
    return f"{socket.gethostname()}-{secrets.token_hex(2)}"


def _complete(options: WorkerOptions) -> WorkerOptions:
    """Return the options with a name, and with a device of this machine."""
    name = options.name or default_name(os.environ)
    device = devices_for(options.device).spread(options.device, options.place)
    return replace(options, device=device, name=name)


def _register(agent: WorkerAgent, managers: Managers, where: tuple[str, int]) -> Address:
    """Register for the first time; explain the error if the manager has another directory."""
    try:
        return agent.register(*where)
    except (OtherDirectory, Untrusted) as error:
        raise managers.explained(error, agent.manager) from None


def _make_agent(
    options: WorkerOptions,
    managers: Managers,
    manager: ManagerClient,
    shared: SharedDirectory,
    ending: ExitStack,
) -> tuple[WorkerAgent, WorkerMetrics]:
    # Imported here, because these import torch, and torch reads the settings made before.
    from downpour.cluster.worker.task_runner import TaskRunner
    from downpour.learning.numerics import numeric_class

    device = options.device
    numerics = numeric_class(device)
    runner = TaskRunner(
        shared,
        device,
        processes=options.processes,
        loaders=loaders_of(options.loaders),
        accepts_code=options.accepts_code,
    )
    ending.callback(runner.close)
    metrics = WorkerMetrics(runner.run)
    agent = WorkerAgent(
        manager,
        shared,
        options.name,
        numerics,
        metrics.run,
        managers.another,
        shown=ShownWorker(
            labels=options.labels,
            device=device,
            differs=lambda: runner.differs,
            blocks=lambda: runner.blocks,
            processor_class=numeric_class(CPU) if device != CPU else None,
            cards=devices_for(AUTO).cards(AUTO),
        ),
    )
    return agent, metrics


def _try_ports(options: WorkerOptions, trust: Trust) -> None:
    """Refuse a host or port that is not available, before we wait for a manager."""
    for field, port in (("port", options.port), ("metrics_port", options.metrics_port)):
        if port is not None:
            listen(options.host or "127.0.0.1", port, trust, field).close()


def _measured(
    options: WorkerOptions, metrics: WorkerMetrics, host: str, trust: Trust
) -> MetricsEndpoint | None:
    """Make the metrics endpoint, if there is a port for it; it does not serve yet."""
    if options.metrics_port is None:
        return None
    listener = listen(host, options.metrics_port, trust, "metrics_port")
    return MetricsEndpoint(metrics, listener, trust)


def _announce(file: str, address: Address) -> Callable[[], None]:
    """Write a worker's address to a file, if the options name one; returns how to remove it."""
    if not file:
        return lambda: None
    path = Path(file)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{address}\n")
    part.replace(path)  # so that no reader finds it empty
    return partial(path.unlink, missing_ok=True)


TRAINED, FAILED, CANCELLED, HANDED_OVER = "trained", "failed", "cancelled", "handed_over"
ENDS = (TRAINED, FAILED, CANCELLED, HANDED_OVER)


class WorkerMetrics:
    """Runs tasks as `run_task` does, and counts; tasks come from one thread, scrapes from any.

    Steps and samples are this worker's own; the steps before a snapshot belong to another worker.
    """

    def __init__(self, run_task: RunTask) -> None:
        self._run_task = run_task
        self._lock = Lock()
        self._running: TaskControl | None = None
        self._ended: Counter[str] = Counter()
        self._steps = 0
        self._samples = 0.0
        self._samples_per_second = 0.0
        self._load, self._train, self._publish = Timing(), Timing(), Timing()
        # A separate sampler: it averages since its last sample, and heartbeats take samples, too.
        self._sampler = machine.SystemSampler()

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Run a task; raises what `run_task` raises."""
        with self._lock:
            self._running = control
        end, update = FAILED, None
        try:
            update = self._run_task(task, control)
            end = TRAINED
        except TaskCancelled:
            end = CANCELLED
            raise
        except HandOverStop:
            end = HANDED_OVER
            raise
        finally:
            self._note(end, control, update)
        return update

    def __call__(self) -> Metrics:
        """Yield the current metrics; those of the machine are averages since the last scrape."""
        # Hold the lock for all of them. When a task ends, its steps move from the running ones to
        # the others, and a counter must neither fall nor count them twice.
        with self._lock:
            yield from self._work()
            yield from self._machine()

    def _note(self, end: str, control: TaskControl, update: Update | None) -> None:
        with self._lock:
            self._running = None
            self._ended[end] += 1
            steps = _own_steps(control)
            self._steps += steps
            if update is None:
                return
            samples = update.samples * steps / update.steps if update.steps else 0.0
            self._samples += samples
            if update.train_seconds > 0:
                self._samples_per_second = samples / update.train_seconds
            self._load.add(update.load_seconds)
            self._train.add(update.train_seconds)
            self._publish.add(update.publish_seconds)

    def _work(self) -> Metrics:
        running = self._running
        steps = self._steps + (_own_steps(running) if running else 0)
        yield counter("downpour_worker_steps_total", "Optimizer steps made.", steps)
        ended = {end: self._ended[end] for end in ENDS}
        help_text = "Tasks that have ended on this worker, by how they ended."
        yield counter("downpour_worker_tasks_total", help_text, ended, "end")
        help_text = "Whether the worker has a task: 1 or 0."
        yield gauge("downpour_worker_busy", help_text, running is not None)
        help_text = "Share of the running task that is done; 0 without a task."
        share = running.progress().share if running else 0.0
        yield gauge("downpour_worker_task_done_ratio", help_text, share)
        help_text = "Samples trained, of finished tasks."
        yield counter("downpour_worker_samples_total", help_text, self._samples)
        help_text = "Samples a second while training, of the last finished task."
        yield gauge("downpour_worker_samples_per_second", help_text, self._samples_per_second)
        help_text = "Loading the model, the shard and the dataset before training."
        yield summary("downpour_worker_load_seconds", help_text, self._load)
        help_text = "Training of a task, the part of this worker."
        yield summary("downpour_worker_train_seconds", help_text, self._train)
        help_text = "Publication of an update."
        yield summary("downpour_worker_publish_seconds", help_text, self._publish)

    def _machine(self) -> Metrics:
        state, _ = self._sampler.sample()
        help_text = "Share of the machine's processors that other processes keep busy."
        yield gauge("downpour_worker_cpu_others_ratio", help_text, state.cpu_others)
        help_text = "The machine's load average over a minute."
        yield gauge("downpour_worker_load_average", help_text, state.load_average)
        help_text = "Share of the machine's memory that is used."
        yield gauge("downpour_worker_memory_used_ratio", help_text, state.memory_used)
        help_text = "Share of the processors' time spent waiting for disks."
        yield gauge("downpour_worker_io_wait_ratio", help_text, state.io_wait)


def _own_steps(control: TaskControl) -> int:
    return control.steps_done - control.steps_before
