"""Settles the fields of a spec that are `auto`: device, optimizer, processes inside a worker.

Nothing here imports torch, which takes seconds. Other processes find out all that only torch can
tell. One measures the arrangements that a machine's cores allow (`intra_worker/timing.py`).

Another one looks which optimizer trains a task. A task may bring its own, and only its code knows.
So we make task, network and optimizer before the spec is resolved: in a separate process, because
the code may end its process or change its state. A run forks it from the process that has imported
torch; a cluster's manager starts a new one.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base.errors import LaunchError, SpecError
from downpour.base.names import AUTO, CPU, Devices
from downpour.core.families import ARRANGEMENTS
from downpour.core.resolve import SAID_BY_TASK, LocalOptimizer
from downpour.core.spec import Spec
from downpour.host.child import JsonLine
from downpour.host.machine import usable_cores
from downpour.host.process import end_with_parent
from downpour.learning.allowlist import environment
from downpour.learning.user_code import imported_by

if TYPE_CHECKING:
    from torch.optim import Optimizer

log = logging.getLogger(__name__)

GAIN_MIN = 1.1
"""A worker leaves its single process only for a step that is at least this many times as fast.
Steps of two processes that did nothing else differed by 7 % (two cores, the report's network, eight
turns)."""

LIBRARIES = {"lightning", "pytorch_lightning", "transformers"}
"""Libraries whose objects can be tasks; a project that imports none has no such object."""

_SIGNS = ("nvidia[0-9]*", "nvmap", "dxg", "kfd")
"""Files of NVIDIA's cards, its small boards, its cards in WSL, and AMD's cards."""
_SIGNS_OF_XPU = ("dri/renderD*",)
"""Most processors have graphics, so these count only if torch is built for them."""
_FILES = Path("/dev")


def devices_for(asked: str) -> Devices:
    """Return the accelerators of this machine, if the requested device may be one of them.

    Torch takes seconds to import. Without any sign of an accelerator, `auto` needs no torch.
    """
    if asked == CPU or (asked == AUTO and not _may_have_any(_build(), _FILES)):
        return Devices()
    from downpour.learning.accelerators import devices_here

    return devices_here()


def _build() -> str:
    """Return the build of the installed torch, such as `cpu` or `cu128`; empty if it is unnamed."""
    try:
        return version("torch").partition("+")[2]
    except PackageNotFoundError:
        return ""


def _may_have_any(build: str, files: Path) -> bool:
    """Whether torch, in this build, may find an accelerator on a machine with these files."""
    if build == "cpu":
        return False
    if sys.platform != "linux":
        return True
    signs = _SIGNS_OF_XPU if build == "xpu" else _SIGNS
    return any(any(files.glob(sign)) for sign in signs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arrangement that may be chosen: threads of a process, processes, and what each has."""

    threads: int = 1
    processes: int = 1
    how: str = "data"

    def __str__(self) -> str:
        if self.processes == 1:
            return "one process" + f" with {self.threads} threads" * (self.threads > 1)
        return f"{self.processes} processes ({self.how})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(JsonLine):
    """A candidate's step: its seconds, how many times as fast as one process, or why it cannot."""

    candidate: Candidate
    step_seconds: float = 0.0
    times_as_fast: float = 0.0
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"{self.candidate}: not possible: {self.refused}"
        ratio = f"{self.times_as_fast:.2f} times as fast"
        return f"{self.candidate}: {1000 * self.step_seconds:.3g} ms a step, {ratio}"


def closed(spec: Spec, chosen: Candidate) -> Spec:
    """Return a spec with the chosen arrangement."""
    inside = {"processes": chosen.processes, "how": chosen.how}
    return spec.replace(threads=chosen.threads, inside=inside)


def candidates(spec: Spec, cores: int) -> list[Candidate]:
    """Return the arrangements that `cores` allow; the first is a single process."""
    threads = spec.threads
    found = [Candidate(threads=threads)]
    if (processes := cores // threads) > 1:
        found.append(Candidate(threads=cores))
        found += [Candidate(threads=threads, processes=processes, how=how) for how in ARRANGEMENTS]
    return found


def chosen_of(measured: Sequence[Measured]) -> Measured:
    """Return the fastest; the first, a single process, unless another one is clearly faster."""
    fastest = max(measured, key=lambda one: one.times_as_fast)
    return fastest if fastest.times_as_fast >= GAIN_MIN else measured[0]


def settled(
    spec: Spec,
    workers: int,
    datasets: Path,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = log.info,
) -> Spec:
    """Return a spec that says how a worker trains inside its machine, measured if it was open.

    Data that are not in `datasets` yet are prepared there. `tell` is called with a line for each
    candidate that was measured, and one for the choice.
    """
    if spec.inside.how != "auto":
        return spec
    cores = usable_cores()
    if devices_for(spec.device).cards(spec.device):
        tell("inside: one process, because workers train on accelerators")
        return closed(spec, Candidate())
    choices = candidates(spec, cores // workers)
    if len(choices) == 1:
        tell(f"inside: {choices[0]}, because {workers} workers share {cores} cores")
        return closed(spec, choices[0])
    found = []
    for one in measured(spec, choices, datasets, data_dir):
        tell(f"inside: {one}")
        found.append(one)
    chosen = chosen_of(found).candidate
    tell(f"inside: chose {chosen}{', because no other is clearly faster' * (chosen == choices[0])}")
    return closed(spec, chosen)


def measured(
    spec: Spec, choices: Sequence[Candidate], datasets: Path, data_dir: Path | None = None
) -> Iterator[Measured]:
    """Measure some steps of each candidate; yields each as soon as it has been."""
    work = {
        "spec": closed(spec, choices[0]).replace(meet=1).to_toml(),  # meet may be open, too
        "candidates": [asdict(one) for one in choices],
        "datasets": str(datasets),
        "data_dir": str(data_dir) if data_dir is not None else None,
    }
    with subprocess.Popen(  # noqa: S603 - this package's own module
        [sys.executable, "-m", "downpour.learning.intra_worker.timing", json.dumps(work)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                yield _said(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise SpecError("inside.how", "auto", "could not be measured on this machine")


def _said(line: str) -> Measured:
    said: Mapping[str, Any] = json.loads(line)
    if "accepted" in said:
        raise SpecError(said["field"], said["value"], said["accepted"])
    return Measured.of(line)


def trainer_of(
    spec: Spec,
    workers: int | None,
    *,
    apart: bool = True,
    patience_seconds: float | None = None,
    ask: Callable[[dict[str, Any]], str] | None = None,
) -> LocalOptimizer | None:
    """Return the optimizer of a spec's task, and the fields that the task says.

    None if the spec names them, or nothing depends on them. We look in a separate process if
    `apart`, which may take `patience_seconds`: in one that `ask` has call `look`, or in a new one.
    """
    is_open = "auto" in {spec.optimizer_state, spec.outer.optimizer}
    is_open = is_open and (spec.shards or workers) != 1
    if spec.task is None or not (is_open or _may_say_fields(spec)):
        return None
    if apart:
        text = spec.replace(meet=1, seed=0).to_toml()  # repetitions share an answer
        if ask is not None:
            return _answered(lambda: ask(_asked(text)))
        try:
            return _found_apart(text, json.dumps(environment()), patience_seconds)
        except subprocess.TimeoutExpired:
            accepted = (
                f"the optimizer of {spec.task} could not be seen within {patience_seconds:g} s: "
                "name keep or reset, and an outer optimizer"
            )
            raise SpecError("optimizer_state", spec.optimizer_state, accepted) from None
    # If the task fails, preparation tells the cause.
    with suppress(Exception):
        return _found(spec)
    return LocalOptimizer(momentum=None)


def _may_say_fields(spec: Spec) -> bool:
    """Whether a task may be of a library whose objects say what the spec leaves out."""
    # A resolved spec names every field that is not None, because no file holds None.
    left_out = (name for name in SAID_BY_TASK if name not in spec.model_fields_set)
    if all(Spec.model_fields[name].default is None for name in left_out):
        return False
    with suppress(SpecError):  # which preparation tells
        return bool(LIBRARIES & imported_by(spec))
    return False


@lru_cache(maxsize=64)
def _found_apart(spec: str, environment_: str, patience_seconds: float | None) -> LocalOptimizer:
    """Look in a child process; remembered, because a study resolves many specs."""
    del environment_  # a part of the key: it says which modules are found, and where
    command = [sys.executable, "-m", __name__]
    begin = partial(subprocess.run, command, text=True, check=True, timeout=patience_seconds)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return _answered(lambda: begin(input=json.dumps(_asked(spec)), **pipes).stdout)


def _asked(spec: str) -> dict[str, Any]:
    return {"spec": spec, "path": sys.path}


def _answered(ask: Callable[[], str]) -> LocalOptimizer:
    with suppress(LaunchError, subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        return LocalOptimizer(**json.loads(ask()))
    log.info("the optimizer of a task cannot be seen before its preparation")
    return LocalOptimizer(momentum=None)


def _found(spec: Spec) -> LocalOptimizer:
    from downpour.base.values import DatasetFacts
    from downpour.learning.tasks.adapted import Adapted
    from downpour.learning.tasks.agreement import TaskData
    from downpour.learning.tasks.loaded import load
    from downpour.learning.training.optimizers import Optimizers

    facts = DatasetFacts(
        train_samples=0, test_samples=0, sample_shape=(), classes=0, targets_per_sample=0
    )
    loaded = load(spec, TaskData(facts=facts, labels=None, sketches={}))
    made = Optimizers(loaded, loaded.network()).by_name.values()
    settings = loaded.task.settings() if isinstance(loaded.task, Adapted) else {}
    return LocalOptimizer(momentum=_momentum_of(list(made)), settings=settings)


def _momentum_of(optimizers: list[Optimizer]) -> float | None:
    """Return the largest momentum if all optimizers are forms of sgd."""
    from torch.optim import SGD

    if not all(isinstance(one, SGD) for one in optimizers):
        return None
    groups = (group for one in optimizers for group in one.param_groups)
    return max(float(group["momentum"]) for group in groups)


def look(asked: dict[str, Any]) -> str:
    """Look at the task of a spec that another process asks about; returns what trains it."""
    sys.path[:] = asked["path"]
    return json.dumps(asdict(_found(Spec.from_toml(asked["spec"]))))


def main() -> None:
    """Look at the task of the spec on standard input, and print what trains it."""
    end_with_parent(9)  # SIGKILL: a client that is gone leaves nothing behind
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what a user's code prints is no answer
        answer.write(look(json.load(sys.stdin)))
        answer.flush()
        os._exit(0)  # in spite of threads from the user's code


if __name__ == "__main__":
    main()
