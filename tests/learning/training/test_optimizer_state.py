"""Optimizers that keep more than tensors by parameter go on elsewhere as a plain loop does."""

import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from downpour.base.errors import FileCorrupt, SpecError
from downpour.core.spec import Spec
from downpour.learning.tasks import Task
from tests.learning.training.test_optimizers import optimizers_of

Groups = list[dict[str, Any]]
STEPS = 12


class InGroups(SGD):
    """Lookahead, with its counter in the groups."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, lr=0.1, momentum=0.9)
        for group in self.param_groups:
            group["count"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Every fifth step returns to the slow weights."""
        super().step(closure)
        for group in self.param_groups:
            group["count"] = (group["count"] + 1) % 5
            for value in group["params"]:
                slow = self.state[value].setdefault("slow", value.clone())
                if group["count"] == 0:
                    slow.lerp_(value, 0.5)
                    value.copy_(slow)


class InAttributes(SGD):
    """The same with a counter and lists of weights as attributes, from before the first step."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, lr=0.1)
        self.count = 0
        self.told: dict[str, Any] = {"mean": np.float32(0), "name": "lookahead"}
        self.slow = [[one.clone().detach() for one in g["params"]] for g in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Every third step returns to the slow weights."""
        super().step(closure)
        self.count += 1
        self.told["mean"] += np.float32(0.1)
        self.grown = (self.count, None, float(self.count))
        for group, slows in zip(self.param_groups, self.slow, strict=True):
            for value, slow in zip(group["params"], slows, strict=True):
                if self.count % 3 == 0:
                    slow.lerp_(value, 0.5 + 0.01 * self.grown[2] + self.told["mean"] / 100)
                    value.copy_(slow)


class Wrapping(Optimizer):
    """The usual Lookahead around another optimizer, whose groups and state are also its own."""

    def __init__(self, groups: Groups) -> None:
        self.optimizer = Adam(groups, lr=0.1)
        self.param_groups = self.optimizer.param_groups
        self.fast_state = self.optimizer.state
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Every other step returns to the slow weights."""
        self.optimizer.step(closure)
        for group in self.param_groups:
            for value in group["params"]:
                slow = self.state[value].setdefault("slow", value.clone())
                if group["counter"] % 2 == 1:
                    slow.lerp_(value, 0.5)
                    value.copy_(slow)
            group["counter"] += 1


class Estimating(SGD):
    """As Prodigy: a factor d that grows with what it has seen, steps as whole numbers, and p0."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, lr=1.0)
        for group in self.param_groups:
            group.update(d=1e-3, d_denom=torch.zeros(()), k=0, grows=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        del closure
        for group in self.param_groups:
            group["k"] += 1
            for value in group["params"]:
                state = self.state[value]
                if not state:
                    state["step"], state["p0"] = 0, value.flatten()[::2].clone()
                    state["big"] = torch.zeros_like(value, dtype=torch.bool)
                state["step"] += 1
                state["big"] |= value.abs() > 1
                group["d_denom"] = group["d_denom"] + value.grad.abs().sum()
                moved = (value.flatten()[::2] - state["p0"]).abs().sum().item()
                group["d"] = max(group["d"], moved / (1 + group["d_denom"].item()))
                group["grows"] = not group["grows"]
                value.sub_(value.grad, alpha=group["d"] * (2 if group["grows"] else 1))


class Rating(SGD):
    """Changes its own learning rate."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        """Take the next step with a smaller rate."""
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.9


class Global(SGD):
    """Keeps state that belongs to no parameter."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        seen: Any = self.state.setdefault("all", {"steps": 0})  # type: ignore[call-overload]
        seen["steps"] += 1
        for group in self.param_groups:
            group["weight_decay"] = 0.01 * seen["steps"]
        super().step(closure)


def _lbfgs(groups: Groups) -> Optimizer:
    return torch.optim.LBFGS(groups[0]["params"], lr=0.1, max_iter=3, history_size=4)


KINDS: list[Callable[[Groups], Any]] = [
    InGroups,
    InAttributes,
    Wrapping,
    Estimating,
    Rating,
    Global,
    _lbfgs,
    lambda groups: torch.optim.Adam(groups, amsgrad=True),
    torch.optim.Rprop,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.Adafactor,
    lambda groups: {"one": InGroups([groups[0]]), "other": Estimating([groups[1]])},
]


class Own(Task):
    """A task with an optimizer of one of the kinds."""

    made: ClassVar[Callable[[Groups], Any]]

    def __init__(self, kind: Callable[[Groups], Any], *, apart: bool) -> None:
        self.kind, self.apart = kind, apart

    def groups(self, model: nn.Module) -> Groups | None:
        """Return a group for each layer, or one."""
        layers = list(model.children()) if self.apart else [model]
        return [{"params": list(one.parameters())} for one in layers]

    def optimizer(self, groups: Groups) -> Any:
        return self.kind(groups)

    def step(self, model: nn.Module, optimizers: Any, batch: Any) -> Tensor:
        raise NotImplementedError


def network() -> nn.Module:
    """Return a small network, always the same."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def stepped(model: nn.Module, number: int, optimizers: list[Optimizer]) -> None:
    """Take a step whose gradient depends on its number."""

    def loss() -> Any:
        model.zero_grad()
        x = torch.linspace(-1, 1, 6).reshape(2, 3) * (1 + number % 4)
        value: Tensor = model(x).square().mean() + sum(p.abs().sum() for p in model.parameters())
        value.backward()  # type: ignore[no-untyped-call]
        return value

    loss()
    for one in optimizers:
        one.step(loss)


def bytes_of(model: nn.Module) -> list[bytes]:
    """Return the bytes of its parameters."""
    return [value.detach().numpy().tobytes() for value in model.parameters()]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_carried_after_each_step_gives_the_bytes_of_a_plain_loop(
    kind: Callable[[Groups], Any], *, copy: bool
) -> None:
    """Whether it is in groups, attributes, lists, a wrapped optimizer, or of several by name."""
    plain = network()
    task = Own(kind, apart=kind is KINDS[-1])
    made = kind(task.groups(plain) or [])
    alone = list(made.values()) if isinstance(made, dict) else [made]
    model, state = network(), None
    for number in range(STEPS):
        stepped(plain, number, alone)
        moved = network()
        moved.load_state_dict(model.state_dict())
        optimizers = optimizers_of(moved, Spec(), task)
        if state is not None:
            optimizers.load(state)
        optimizers.set_rate(1.0)
        stepped(moved, number, list(optimizers.by_name.values()))
        state, model = optimizers.arrays(copy=copy), moved
        assert bytes_of(model) == bytes_of(plain), number


def test_tensors_are_compared_with_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch throws an error in C++ and catches it, each time; a greenlet does not survive that."""
    model = network()
    optimizers = optimizers_of(model, Spec(momentum=0.5))
    stepped(model, 0, list(optimizers.by_name.values()))
    monkeypatch.setattr(Tensor, "__eq__", lambda *_: pytest.fail("a tensor is compared"))
    optimizers.load(optimizers.arrays())


def test_a_state_replaces_what_came_after_it() -> None:
    """Values that are as in a new optimizer are in no file, but a load brings them back."""
    task = Own(InGroups, apart=False)
    model = network()
    optimizers = optimizers_of(model, Spec(), task)
    for number in range(5):  # so the counter is at zero again
        stepped(model, number, list(optimizers.by_name.values()))
    state = optimizers.arrays()
    assert not any("count" in name for name in state)
    stepped(model, 5, list(optimizers.by_name.values()))
    optimizers.load(state)
    assert optimizers.by_name["optimizer"].param_groups[0]["count"] == 0


class Secretive(SGD):
    """Keeps what no file can hold."""

    def __init__(self, groups: Groups, kept: Any, where: str) -> None:
        super().__init__(groups, lr=0.1)
        self.where, self.told = where, print
        holder = self.param_groups[0] if where == "groups" else vars(self)
        holder["kept"] = kept

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        kept = self.param_groups[0].get("kept", vars(self).get("kept"))
        if isinstance(kept, set):
            kept.add(len(kept))
        elif isinstance(kept, random.Random):
            kept.random()
        elif self.where == "state":
            parameter = self.param_groups[0]["params"][0]
            self.state[parameter]["kept"] = torch.zeros(2, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("kept", "where", "why"),
    [
        (set(), "attribute", "its optimizer keeps kept, a set: other workers can only"),
        (set(), "groups", "its optimizer keeps kept in its groups, a set: other workers"),
        (random.Random(1), "attribute", "its optimizer keeps kept, a Random: other workers"),
        (None, "state", "its optimizer keeps kept of 0.weight, a torch.bfloat16 tensor: other"),
    ],
)
def test_unwritable_optimizer_state_is_refused_by_name(kept: Any, where: str, why: str) -> None:
    """Once a step has changed it; until then nobody misses it."""
    model = network()
    task = Own(lambda groups: Secretive(groups, kept, where), apart=False)
    optimizers = optimizers_of(model, Spec(task="lab:Own"), task)
    optimizers.arrays()
    stepped(model, 0, list(optimizers.by_name.values()))
    with pytest.raises(SpecError, match=re.escape(why)):
        optimizers.arrays()


class Late(SGD):
    """Takes another group in its first step."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        if len(self.param_groups) == 1:
            self.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_groups_that_a_step_adds_are_refused() -> None:
    """Another worker makes the optimizer anew, without them."""
    model = network()
    task = Own(lambda groups: Late(groups, lr=0.1), apart=False)
    optimizers = optimizers_of(model, Spec(task="lab:Own"), task)
    stepped(model, 0, list(optimizers.by_name.values()))
    for look in (optimizers.arrays, lambda: optimizers.set_rate(1.0)):
        with pytest.raises(SpecError, match="a step changes which parameters its optimizer trains"):
            look()


class Free(SGD):
    """Schedule-free: has other parameters for the evaluation."""

    def eval(self) -> None:
        """Exchange them."""


def test_a_schedule_free_optimizer_is_refused_as_one() -> None:
    """A model version would have the parameters that it trains, not those that it evaluates."""
    task = Own(lambda groups: Free(groups, lr=0.1), apart=False)
    with pytest.raises(SpecError, match=r"its optimizer has eval\(\), as schedule-free ones do"):
        optimizers_of(network(), Spec(task="lab:Own"), task)


@pytest.mark.parametrize(
    "name", ["=0.weight@/x", "=:optimizer/count", "=:other/count", "+nothing", "=:optimizer[7]/d"]
)
def test_a_damaged_state_is_corrupt(name: str) -> None:
    """Its name belongs to nothing here, or its text is none."""
    optimizers = optimizers_of(network(), Spec(), Own(InGroups, apart=False))
    if name.startswith("+"):
        optimizers.load({name: np.zeros(1)})  # no value names it, so nobody reads it
        return
    with pytest.raises(FileCorrupt, match="optimizer state"):
        optimizers.load({name: np.frombuffer(b'{"tensor": "+gone", "device": "cpu"}', np.uint8)})
