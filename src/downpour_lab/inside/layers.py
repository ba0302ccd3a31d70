"""A network as a chain of layers: the runs of operations between places that one tensor crosses.

Any network computes a graph of operations. We can cut it at any single value that alone connects
the operations before it with those after it: an `nn.Sequential` between its modules, a residual
network between its blocks. Some modules' forward is no plain sequence of operations, as with a loop
over the values of a tensor. In them we know no place to cut, and the whole module is one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from downpour.learning.blame import users_errors


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
    """Runs the first layers; `output` is their result.

    Args:
        layers: the first layers.
    """

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
