"""A network as a chain of layers, and where to cut it, by trying it.

Any network computes a graph of operations. We can cut it at any single value that alone connects
the operations before it with those after it: an `nn.Sequential` between its modules, a residual
network between its blocks. Some modules' forward is no plain sequence of operations, as with a loop
over the values of a tensor. In them we know no place to cut, and the whole module is one layer.

The user names the modules that stages begin with, or each stage is to take about as long as the
others. The bytes are the same wherever it is cut, so a cut by measured time is no setting.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn

from downpour.base.errors import DownpourError, SpecError
from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.accelerators import is_plain
from downpour.learning.blame import describe_error, is_lack_of_memory, users_errors
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.repeating import tensor_sum
from downpour.learning.training.step import BatchPart, add_gradient
from downpour_lab.inside.links import exact_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A stretch of a network that takes one tensor and returns one value.

    `name` is that of the module or the function with which it begins, `parameters` are all that it
    uses.
    """

    name: str
    run: Callable[[Tensor], Any]
    parameters: tuple[nn.Parameter, ...]


def layers_of(network: nn.Module) -> list[Layer]:
    """Return a network's layers in their order; run one after the other they are its forward.

    A caller holds `generators.ALONE`, because tracing changes what all modules of a process do.
    """
    return list(_layers(network, ""))


def _layers(module: nn.Module, name: str) -> Iterator[Layer]:
    stretches = _Traced.stretches(module)
    if not stretches or (len(stretches) == 1 and stretches[0].module is None):
        yield Layer(name=name, run=module, parameters=tuple(module.parameters()))
        return
    for stretch in stretches:
        called = ".".join(word for word in (name, stretch.name) if word)
        if stretch.module is not None:
            yield from _layers(stretch.module, called)
        else:
            yield Layer(name=called, run=stretch, parameters=tuple(stretch.parameters()))


class _Whole(nn.Module):
    """Calls a module as others do, so that its hooks are traced with it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


class _Traced(fx.Tracer):
    """Traces the operations of one module; its children are an operation each."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del module_qualified_name
        return m is not self._module

    @classmethod
    def stretches(cls, module: nn.Module) -> list[_Stretch]:
        """Return the runs of a module's operations between the places that one value crosses."""
        if not any(module.children()):
            return []
        whole = _Whole(module)
        try:
            graph = fx.GraphModule(whole, cls(module).trace(whole))
        except users_errors():
            return []
        begin, *nodes, end = graph.graph.nodes
        if begin.op != "placeholder" or not nodes or end.args != (nodes[-1],):
            return []
        found: list[_Stretch] = []
        for run in _runs(begin, nodes):
            found.append(_Stretch(graph, begin, run))
            begin = run[-1]
        return found


class _Stretch:
    """Some consecutive operations of a traced module, as a function of the value before them."""

    def __init__(self, graph: fx.GraphModule, before: fx.Node, nodes: list[fx.Node]) -> None:
        self._graph = graph
        self._nodes = nodes
        self._before = before

    @property
    def name(self) -> str:
        """The first module that it calls, or the first function."""
        called = [str(node.target) for node in self._nodes if node.op == "call_module"]
        return called[0].removeprefix("module.") if called else self._nodes[0].name

    @property
    def module(self) -> nn.Module | None:
        """The module that it calls, if it does nothing else."""
        first, *others = self._nodes
        if others or first.op != "call_module":
            return None
        return self._graph.get_submodule(str(first.target))

    def __call__(self, x: Tensor) -> Any:
        interpreter = fx.Interpreter(self._graph)
        interpreter.env = {self._before: x}
        for node in self._nodes:
            interpreter.env[node] = interpreter.run_node(node)
        return interpreter.env[self._nodes[-1]]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what its operations use."""
        for node in self._nodes:
            if node.op == "call_module":
                yield from self._graph.get_submodule(str(node.target)).parameters()
            elif node.op == "get_attr":
                owner, _, attribute = str(node.target).rpartition(".")
                value = getattr(self._graph.get_submodule(owner), attribute)
                if isinstance(value, nn.Parameter):
                    yield value


def _runs(begin: fx.Node, nodes: list[fx.Node]) -> Iterator[list[fx.Node]]:
    """Cut operations wherever the later ones need only the last one's value."""
    place = {node: number for number, node in enumerate([begin, *nodes])}
    # After the last of its users nothing needs a value any more.
    until = {
        node: max((place.get(user, len(place)) for user in node.users), default=0) for node in place
    }
    run: list[fx.Node] = []
    needed = until[begin]
    for node in nodes:
        run.append(node)
        if needed <= place[node] or node is nodes[-1]:
            yield run
            run = []
        needed = max(needed, until[node])


class EntranceDone(BaseException):
    """The first layers have run, and the task's loss is of no use here.

    No Exception, so that no loss of a user's takes it for a failure of the model.
    """


class Entrance(nn.Module):
    """Runs the first layers; `output` is their result."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._layers = layers
        self.output = torch.empty(0)

    def forward(self, x: Tensor) -> Any:
        """Run the layers on what the loss gives to the network."""
        self.output = run(self._layers, x)
        raise EntranceDone


def run(layers: Sequence[Layer], x: Tensor) -> Any:
    """Run layers one after the other."""
    for layer in layers:
        x = layer.run(x)
    return x


_NUMBERS_MOVED = 2.5
"""An optimizer with momentum reads three numbers of each parameter's and writes two; the
multiplication in place that is timed instead reads one and writes one."""

_NEEDED = "its loss must call the model once, with one tensor, and use only its output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The findings of a run: the layers, and the seconds of each, forward and backward.

    `points` are the layers that a stage may begin with, besides the first: one tensor of floats
    leads there, and no parameter is used on both sides. `step_seconds` is about what an optimizer
    takes for all parameters.
    """

    layers: list[Layer]
    seconds: tuple[float, ...]
    points: tuple[int, ...]
    step_seconds: float


def probed(loaded: LoadedTask, network: nn.Module, part: BatchPart) -> Probe:
    """Run a task's network layer by layer on a part; its parameters are not changed."""
    with _training(loaded, network) as seed:
        run = _Run(layers_of(network))
        for _ in range(2):  # the first time memory is allocated, and no gradient added to another
            seed()
            run.of(loaded, part)
        return run.seen(_step_seconds(network))


def check_same_bytes(loaded: LoadedTask, network: nn.Module, part: BatchPart) -> None:
    """Refuse a network that gives another loss or gradient where it is run layer by layer."""
    with _training(loaded, network) as seed:
        layers = layers_of(network)
        seed()
        whole = [tensor_sum(add_gradient(loaded, network, part)), *_gradients(network)]
        network.zero_grad()
        seed()
        in_layers = [tensor_sum(_Run(layers).of(loaded, part)), *_gradients(network)]
    if whole != in_layers and loaded.spec.repeatable:
        accepted = (
            f"gives different bytes layer by layer: {_NEEDED}, and a module that calls "
            "others must not draw random numbers itself"
        )
        raise refused(loaded, accepted)


def refused(loaded: LoadedTask, why: str) -> SpecError:
    """Return the refusal of a network that cannot be cut."""
    _, name = loaded.spec.trained_code
    return SpecError("inside.how", loaded.spec.inside.how, f"{name} {why}")


@contextmanager
def _training(loaded: LoadedTask, network: nn.Module) -> Iterator[Callable[[], None]]:
    """Return a context of a step, in which generators can be set; gradients are forgotten."""
    spec = loaded.spec
    randomness = numerics.Randomness(spec.seed, spec.device, beyond_torch=spec.trains_own_code)
    network.train()
    with numerics.settings(spec), randomness.active():
        try:
            yield lambda: randomness.begin(0)
        finally:
            network.zero_grad()


class _Run(nn.Module):
    """Stands for a network; its forward runs the layers with a copy between them.

    The copy is of the tensor that leads on, forward and backward, as if each process had some of
    the layers. In the task's loss the run has none of the network's parameters. So it finds out a
    loss that looks at these, or that calls the network twice.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._known = list(layers)
        self._apart = _apart(layers)
        self._calls = 0
        self._points: list[int] = []
        # When each layer began to run and ended, forward; and where backward was when.
        self._forward: list[float] = []
        self._backward: list[tuple[int, float]] = []

    def forward(self, x: Tensor) -> Any:
        self._calls += 1
        for number, layer in enumerate(self._known, start=1):
            self._forward.append(time.perf_counter())
            x = layer.run(x)
            if number in self._apart and _crosses(x):
                self._points.append(number)
                x = _Crossing.apply(x, number, self._backward)
        self._forward.append(time.perf_counter())
        return x

    def of(self, loaded: LoadedTask, part: BatchPart) -> Tensor:
        """Add the gradients of a part to the network's; returns its share of the loss."""
        self._calls, self._points, self._forward, self._backward = 0, [], [], []
        try:
            loss = add_gradient(loaded, self, part)
        except (DownpourError, MemoryError):
            raise
        except users_errors() as error:
            if is_lack_of_memory(error):
                raise
            raise refused(
                loaded, f"fails layer by layer: {describe_error(error)}; {_NEEDED}"
            ) from error
        self._backward.append((0, time.perf_counter()))
        if self._calls != 1:
            raise refused(loaded, f"runs {self._calls} times in a step; {_NEEDED}")
        return loss

    def seen(self, step_seconds: float) -> Probe:
        seconds = [after - before for before, after in pairwise(self._forward)]
        # If no mark separates some layers, their time goes to the first of them.
        for (_, before), (layer, after) in pairwise(self._backward):
            seconds[layer] += after - before
        return Probe(
            layers=self._known,
            seconds=tuple(seconds),
            points=tuple(number for number in self._points if number < len(self._known)),
            step_seconds=step_seconds,
        )


class _Crossing(torch.autograd.Function):
    """Copies a tensor on its way forward, and its gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int, times: list[tuple[int, float]]) -> Tensor:
        ctx.number, ctx.times = number, times
        return exact_copy(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.times.append((ctx.number, time.perf_counter()))
        return exact_copy(grads[0]), None, None


def _crosses(value: object) -> bool:
    """Whether a value can go to another process: a tensor that can have a gradient."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and type(value) is Tensor
        and is_plain(value)
    )


def _apart(layers: Sequence[Layer]) -> set[int]:
    """Return the numbers of layers before which no parameter is used that is used after, too."""
    last: dict[int, int] = {}
    for number, layer in enumerate(layers):
        last |= dict.fromkeys(map(id, layer.parameters), number)
    apart, until = set(), 0
    for number, layer in enumerate(layers, start=1):
        until = max([until, *(last[id(value)] for value in layer.parameters)])
        if until < number:
            apart.add(number)
    return apart


def _step_seconds(network: nn.Module) -> float:
    began = time.perf_counter()
    for value in network.parameters():
        if value.grad is not None:
            value.grad.mul_(1)
    return _NUMBERS_MOVED * (time.perf_counter() - began)


def _gradients(network: nn.Module) -> Iterator[str]:
    for value in network.parameters():
        yield "" if value.grad is None else tensor_sum(value.grad)


def first_dense(loaded: LoadedTask, layers: Sequence[Layer]) -> int:
    """Return the number of the first dense layer."""
    dense = [n for n, layer in enumerate(layers) if isinstance(layer.run, nn.Linear)]
    used = [id(value) for layer in layers for value in layer.parameters]
    if not dense or dense[0] == 0:
        accepted = (
            "has no nn.Linear after other layers, whose outputs several processes could share"
        )
    elif any(used.count(id(value)) > 1 for n in dense for value in layers[n].parameters):
        accepted = "uses a dense layer twice"
    else:
        return dense[0]
    raise refused(loaded, accepted)


def stages_of(loaded: LoadedTask, probe: Probe, processes: int | None = None) -> list[range]:
    """Return the layers of each stage; of `processes`, if there are fewer than the spec is for.

    The spec's places to cut are then for more stages, and measured time decides.
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
    begin = []  # the first layer of each module; -1 if there is none
    for name in cut:
        inner = (n for n, known in enumerate(names) if f"{known}.".startswith(f"{name}."))
        begin.append(next(inner, -1))
    for name, number in zip(cut, begin, strict=True):
        if number not in probe.points:
            possible = list(dict.fromkeys(names[point] for point in probe.points))
            near = ", ".join(difflib.get_close_matches(name, possible, n=3, cutoff=0))
            accepted = f"no stage can begin with {name!r}; the nearest possible ones are {near}"
            raise SpecError("inside.cut", cut, accepted)
    if begin != sorted(set(begin)):
        raise SpecError("inside.cut", cut, "must be in the order of the network's modules")
    return begin


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
