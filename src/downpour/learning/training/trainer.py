"""Finds out which optimizer trains a task, for the fields of a spec that are `auto`.

A task may bring its own, and only its code knows. So we make task, network and optimizer before the
spec is resolved: in a separate process, because the code may end its process or change its state.
A run forks it from the process that has imported torch; a cluster's manager starts a new one.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from downpour.base.errors import LaunchError, SpecError
from downpour.core.resolve import LocalOptimizer
from downpour.core.spec import Spec
from downpour.host.process import end_with_parent
from downpour.learning.allowlist import environment

if TYPE_CHECKING:
    from torch.optim import Optimizer

log = logging.getLogger(__name__)


def trainer_of(
    spec: Spec,
    workers: int | None,
    *,
    apart: bool = True,
    patience_seconds: float | None = None,
    ask: Callable[[dict[str, Any]], str] | None = None,
) -> LocalOptimizer | None:
    """Return the optimizer of a spec's task; None if the spec names it, or nothing depends on it.

    Args:
        spec: what is to train.
        workers: how many workers there are, if known.
        apart: whether to look in a separate process.
        patience_seconds: how long that may take; None: any time.
        ask: lets another process call `look` with its argument; None: we start one.
    """
    is_open = "auto" in {spec.optimizer_state, spec.outer.optimizer}
    if spec.task is None or not is_open or (spec.shards or workers) == 1:
        return None
    if apart:
        text = spec.replace(meet=1).to_toml()
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
        return LocalOptimizer(momentum=json.loads(ask())["momentum"])
    log.info("the optimizer of a task cannot be seen before its preparation")
    return LocalOptimizer(momentum=None)


def _found(spec: Spec) -> LocalOptimizer:
    """Make the task's network and optimizers."""
    from downpour.base.values import DatasetFacts
    from downpour.learning.tasks.agreement import TaskData
    from downpour.learning.tasks.loaded import load
    from downpour.learning.training.optimizers import Optimizers

    facts = DatasetFacts(
        train_samples=0, test_samples=0, sample_shape=(), classes=0, targets_per_sample=0
    )
    loaded = load(spec, TaskData(facts=facts, labels=None, sketches={}))
    made = Optimizers(loaded, loaded.network()).by_name.values()
    return LocalOptimizer(momentum=_momentum_of(list(made)))


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
    return json.dumps({"momentum": _found(Spec.from_toml(asked["spec"])).momentum})


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
