"""The metrics of a worker for Prometheus: its tasks, and the state of its machine.

`WorkerMetrics` wraps the function that runs tasks, so it hears of all. It imports no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING

from downpour.base.values import Update
from downpour.cluster.worker.agent import RunTask
from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.cluster.worker.system import SystemSampler
from downpour.network.metrics import Timing, counter, gauge, summary
from downpour.network.rpc.messages import TaskMessage

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

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
        self._sampler = SystemSampler()

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

    def __call__(self) -> Iterator[Metric]:
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

    def _work(self) -> Iterator[Metric]:
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

    def _machine(self) -> Iterator[Metric]:
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
