"""The surroundings of a run: its shared directory, data, launcher and number of workers.

`cuts_of` shows how a split would cut the training data there; it trains nothing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.values import DEFAULT_SHARED, is_bare_name
from downpour.cluster.disturbances import UNDISTURBED, Disturbances
from downpour.cluster.launchers import Launcher
from downpour.cluster.options import checked_patience
from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut
from downpour.files.spec_file import read_toml
from downpour.files.store import SPEC_NAME, SharedDirectory
from downpour.files.store.directory import names_in
from downpour.host.machine import usable_cores
from downpour.host.paths import path_of
from downpour.learning.auto import devices_for
from downpour.learning.tasks.agreement import check_named, check_same_data, open_data, prepare_data

Location = str | os.PathLike[str]
"""A path, or the URL of an object store, as users write it."""


class Surroundings:
    """The needs of a run besides its spec; none of them changes the model.

    `shared` is the shared directory, `data_dir` a folder of datasets in torchvision's layout, and
    `patience` multiplies every timeout. `on` starts the workers: a launcher, or the name of one.
    `on_name` is the name of a launcher with options, if it is known. `disturbances` happen to the
    processes of a local launcher. The environment fills in a missing directory or folder.
    """

    def __init__(
        self,
        shared: Location | None = None,
        data_dir: Location | None = None,
        patience: float = 1.0,
        on: Launcher | str | None = None,
        on_name: str | None = None,
        disturbances: Disturbances = UNDISTURBED,
    ) -> None:
        source = data_dir or os.environ.get("DOWNPOUR_DATA")
        self.shared = shared_path(shared)
        self.data_dir = path_of("data_dir", source) if source else None
        self.patience = checked_patience(patience)
        self.on = "local" if on is None else on
        self.on_name = on_name
        self.disturbances = disturbances

    @property
    def is_local(self) -> bool:
        """Whether manager and workers are processes of this machine, by their launcher's name."""
        return (self.on_name or self.on) == "local"

    @property
    def is_here(self) -> bool:
        """Whether the workers run on this machine, by their launcher's name."""
        return (self.on_name or self.on) in {"local", "inline"}


def shared_path(shared: Location | None) -> Path:
    """Return the shared directory: the given one, the environment's, or the default."""
    if shared is None:
        shared = os.environ.get("DOWNPOUR_SHARED") or DEFAULT_SHARED
    return path_of("shared", shared)


_ELSEWHERE_MAX = 4


def workers_for(spec: Spec, workers: int | None = None, *, is_here: bool = True) -> int:
    """Return how many workers to start: `workers`, or a default that fits spec and machine.

    On this machine, we start one for each shard, but no more than one for each accelerator, or,
    without any, than its cores can run at once. Further workers would wait for each other, and each
    takes the memory of a process with torch. If the spec has no number of shards, each worker gets
    one. `docs/how-to/more-workers.md` has the measured seconds behind this rule. Elsewhere
    Downpour does not know the cores, and users should ask for a hundred jobs themselves.
    """
    if workers is None:
        room = _ELSEWHERE_MAX
        if is_here:  # we measure `inside = "auto"` later, for the cores that a worker has
            room = _cards(spec) or max(1, usable_cores() // (spec.threads * spec.inside.processes))
        return (room if spec.shards is None else min(spec.shards, room)) + spec.standbys
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise SpecError("workers", workers, "must be a whole number, at least 1")
    return workers


def explained(spec: Spec, *, is_here: bool) -> str:
    """Say how many workers start if the user names no number, and why."""
    workers = workers_for(spec, is_here=is_here)
    if workers - spec.standbys == spec.shards:
        why = "one a shard"
    else:
        why = f"for {_found(spec)}" if is_here else "the default"
    also = f", {spec.standbys} of them on standby" if spec.standbys else ""
    return f"{workers} worker{'s' * (workers != 1)}, {why}{also}; --workers takes another number"


def idle_cores(spec: Spec, workers: int | None, *, is_here: bool) -> str:
    """Say that half of this machine's cores or more will be idle, and what uses them; else nothing.

    A plain script computes with all of them, but a worker with one thread: its number decides the
    bytes.
    """
    workers, cores = workers_for(spec, workers, is_here=is_here) - spec.standbys, usable_cores()
    processes = min(workers, spec.shards or workers) * spec.inside.processes
    used, threads = processes * spec.threads, cores // max(1, processes)
    if not is_here or _cards(spec) or spec.inside.how == "auto" or 2 * used > cores:
        return ""
    more = f"--threads {threads} takes {processes * threads}, and changes the model's bytes"
    return f"only {used} of {cores} cores will compute; {more}"


def _cards(spec: Spec) -> int:
    """Return how many accelerators serve the spec; processes that share a batch need cores."""
    shares_batches = spec.inside.processes > 1
    return 0 if shares_batches else devices_for(spec.device).cards(spec.device)


def _found(spec: Spec) -> str:
    if cards := _cards(spec):
        return "one accelerator" if cards == 1 else f"{cards} accelerators"
    cores = usable_cores()
    return "one core" if cores == 1 else f"{cores} cores"


def resumed_by(spec: Spec, shared: Path) -> tuple[str, ...]:
    """Return the identifiers of the experiments that a spec resumes, the last one first.

    The list ends before an experiment whose spec is gone.
    """
    folder = SharedDirectory(shared).experiments
    found: list[str] = []
    fields: Mapping[str, Any] = {"init_from": spec.init_from, "rounds_before": spec.rounds_before}
    while fields.get("rounds_before"):
        name = str(fields.get("init_from")).partition("/")[0]
        if not is_bare_name(name) or name in found:
            break
        found.append(name)
        try:
            fields = read_toml(folder / name / SPEC_NAME)
        except SpecError:
            break
    return tuple(found)


def shards_for(spec: Spec) -> int:
    """Return how many shards `downpour run` would train here: the spec's, or one for each worker.

    A standby has no shard.
    """
    return spec.shards or workers_for(spec) - spec.standbys


def cuts_of(
    spec: Spec, splits: Sequence[str], shards: int, shared: Path, data_dir: Path | None = None
) -> list[SplitCut]:
    """Cut the training data of a spec as each of several splits would.

    `splits` replace the spec's own; if there are none, that one remains. The shared directory may
    have the prepared data.
    """
    specs = [spec.replace(split=split) for split in dict.fromkeys(splits or [spec.split])]
    check_named(spec, data_dir)
    with _datasets(shared) as folder:
        key = prepare_data(spec, folder, data_dir)
        check_same_data(spec, folder, key)
        data = open_data(spec, folder, key)
        facts, labels = data.facts, data.labels
        return [
            cut(one, labels, facts.train_samples, facts.classes, shards, data.block_ends)
            for one in specs
        ]


@contextmanager
def _datasets(shared: Path) -> Iterator[Path]:
    """Yield the folder for prepared data: the shared directory's, where a run finds them.

    If no manager has made it yet, use a temporary folder, because looking should leave no files.
    """
    datasets = SharedDirectory(shared.absolute()).datasets
    # False where a folder above cannot be read.
    if os.path.exists(shared) and datasets.name in names_in(shared):  # noqa: PTH110
        yield datasets
        return
    with TemporaryDirectory(prefix="downpour-") as folder:
        yield Path(folder)
