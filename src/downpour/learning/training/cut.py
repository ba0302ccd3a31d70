"""Cuts a network into stages, for processes that have some consecutive layers each.

The user names the modules that stages begin with, or each stage is to take about as long as the
others. The bytes are the same wherever it is cut, so a cut by measured time is no setting.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import numerics
from downpour.learning.training.probe import Probe, check_same_bytes, probed, refused
from downpour.learning.training.sliced_step import first_dense
from downpour.learning.training.step import BatchPart


def check_cut(loaded: LoadedTask, part: BatchPart) -> None:
    """Refuse a network that cannot be cut as its spec says, or gives other bytes layer by layer.

    Args:
        loaded: the task.
        part: a part of a batch, to try it on.

    Raises:
        SpecError: says what is wrong.
    """
    network = loaded.network()
    numerics.place(network, loaded.spec, images=loaded.images)
    probe = probed(loaded, network, part)
    if loaded.spec.inside.how == "pipeline":
        stages_of(loaded, probe)
    elif first_dense(loaded, probe.layers) not in probe.points:
        raise refused(loaded, "has paths around its first dense layer")
    check_same_bytes(loaded, network, part)


def stages_of(loaded: LoadedTask, probe: Probe, processes: int | None = None) -> list[range]:
    """Return the layers of each stage; of `processes`, if there are fewer than the spec is for.

    The spec's places to cut are then for more stages, and measured time decides.

    Raises:
        SpecError: the network cannot be cut into so many, or not where the spec says.
    """
    spec, most = loaded.spec, len(probe.points) + 1
    stages = processes or spec.inside.processes
    if most == 1:
        accepted = (
            "cannot be cut: it needs a place that only one tensor crosses, such as "
            "between the modules of an nn.Sequential"
        )
        raise refused(loaded, accepted)
    if stages > most:
        accepted = f"{spec.trained_code[1]} can be cut into {most} stages at most"
        raise SpecError("inside.processes", stages, accepted)
    named = len(spec.inside.cut) == stages - 1
    begin = _named(spec, probe) if named else balanced(probe, stages)
    return [range(*bounds) for bounds in pairwise([0, *begin, len(probe.layers)])]


def _named(spec: Spec, probe: Probe) -> list[int]:
    """Return the layers that the modules named in `cut` begin with."""
    cut = list(spec.inside.cut)
    names = [layer.name for layer in probe.layers]
    begin = [_beginning(name, names) for name in cut]
    for name, number in zip(cut, begin, strict=True):
        if number not in probe.points:
            possible = list(dict.fromkeys(names[point] for point in probe.points))
            near = ", ".join(difflib.get_close_matches(name, possible, n=3, cutoff=0))
            accepted = f"no stage can begin with {name!r}; the nearest possible ones are {near}"
            raise SpecError("inside.cut", cut, accepted)
    if begin != sorted(set(begin)):
        raise SpecError("inside.cut", cut, "must be in the order of the network's modules")
    return begin


def _beginning(name: str, names: Sequence[str]) -> int:
    """Return the first layer of a module, -1 if there is none."""
    inner = (n for n, known in enumerate(names) if f"{known}.".startswith(f"{name}."))
    return next(inner, -1)


def balanced(probe: Probe, stages: int) -> list[int]:
    """Return the layers that the second and each further stage begins with.

    The slowest stage is as fast as can be. The last one also has the optimizer's step.
    """
    total = [0.0, *accumulate(probe.seconds)]
    end = len(probe.seconds)

    @cache
    def best(begin: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Return the slowest stage's seconds and where stages begin, from a layer on."""
        if left == 1:
            return total[end] - total[begin] + probe.step_seconds, ()
        choices = (
            (max(total[point] - total[begin], slowest), (point, *further))
            for point in probe.points
            if point > begin
            for slowest, further in [best(point, left - 1)]
        )
        return min(choices, default=(math.inf, ()))

    return list(best(0, stages)[1])
