"""Networks keep tensors that numpy cannot see. Looking at them neither refuses nor changes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import PreparedDataset
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import load_parameters, parameters_of
from downpour.learning.training.trial import check_trains

from .conftest import BASE, with_network

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""Torch warns of most of these."""

SHARDS = [np.arange(50), np.arange(50, 87)]
_COMPLEX = torch.ones(4, dtype=torch.complex64)


def _in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return torch.ones(4)


ODD: dict[str, Callable[[], Tensor]] = {
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bfloat16": lambda: torch.ones(4, dtype=torch.bfloat16),
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "conjugated": _COMPLEX.conj,
    "negative": lambda: _COMPLEX.conj().imag,
    "meta": lambda: torch.empty(4, device="meta"),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "wrapper": lambda: TwoTensor(torch.ones(4), torch.ones(4)),
    "inferred": _in_inference_mode,
    "empty": lambda: torch.empty(0),
}


class Keeping(nn.Module):
    """Keeps tensors beside its parameters; some are part of the step, and none changes."""

    def __init__(self, kept: Tensor, buffer: Tensor) -> None:
        super().__init__()
        self.dense, self.kept = nn.Linear(64, 4), kept
        self.buffer: Tensor
        self.register_buffer("buffer", buffer, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return four numbers an example, by way of what is kept if that is a matrix."""
        shown: Tensor = self.dense(x.flatten(1))
        return torch.sparse.mm(self.kept, shown.T).T if self.kept.is_sparse else shown


def tried(dataset: PreparedDataset, network: Callable[[], nn.Module], **fields: Any) -> None:
    """Do what a manager does at submission."""
    spec = Spec.make({**BASE, "accumulate": 2, **fields})
    check_trains(with_network(spec, dataset, network), SHARDS)


@pytest.mark.parametrize("odd", ODD)
def test_a_network_may_keep_any_tensor_beside_its_parameters(
    dataset: PreparedDataset, odd: str
) -> None:
    """As an attribute and as a buffer that is in no file."""
    tried(dataset, lambda: Keeping(ODD[odd](), ODD[odd]()))


@pytest.mark.parametrize(("odd", "said"), [
    ("coo", "is sparse_coo; Downpour only sends dense tensors"),
    ("bfloat16", "is torch.bfloat16, but must be float32"),
    ("negative", "resolve_neg"),
    ("meta", "on the meta device"),
    ("jagged", "is nested"),
    ("wrapper", "is a TwoTensor, whose memory cannot"),
])  # fmt: skip
def test_a_tensor_that_no_file_holds_is_refused_where_one_must(
    dataset: PreparedDataset, odd: str, said: str
) -> None:
    """A persistent buffer travels; the line names it, and the way to keep it out of files."""

    def network() -> nn.Module:
        built = Keeping(torch.ones(1), torch.ones(1))
        built.register_buffer("mine", ODD[odd]())
        return built

    loaded = with_network(Spec.make(BASE), dataset, network)
    with pytest.raises(SpecError, match=f"mine .*{said}.*persistent=False"):
        loaded.check_fit(loaded.network())


class Observed(nn.Module):
    """A dense layer of which torch's observers, as quantization puts them there, see the output."""

    def __init__(self, *, ready: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 4)
        self.seen = torch.ao.quantization.PerChannelMinMaxObserver(ch_axis=0)
        if ready:
            self(torch.zeros(2, 64))

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(x.flatten(1))
        self.seen(self.dense.weight)
        return shown


def test_a_buffer_stays_resizable(dataset: PreparedDataset) -> None:
    """Whatever we did with a network, an observer can still resize its buffers."""
    network = Observed(ready=False)
    load_parameters(network, parameters_of(network, copy=False))
    network(torch.zeros(2, 64))
    tried(dataset, lambda: Observed(ready=True))


def test_a_buffer_that_changes_its_shape_is_refused(dataset: PreparedDataset) -> None:
    """No model file could hold both; the line names it and the remedy."""
    line = r"seen.max_val float32 \[4\], but it was float32 \[0\]: .* one forward pass in model\(\)"
    with pytest.raises(SpecError, match=line):
        tried(dataset, lambda: Observed(ready=False))


class Lowest(nn.Module):
    """Keeps the lowest output in a buffer that begins at infinity, from some call on."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.dense, self.after, self.calls = nn.Linear(64, 4), after, 0
        self.low: Tensor
        self.register_buffer("low", torch.tensor([torch.inf, 0.0, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(x.flatten(1))
        self.calls += self.training
        if self.calls > self.after:
            self.low[0] = torch.minimum(self.low[0], shown.min().detach())
        return shown


def test_infinity_that_becomes_a_number_is_refused_at_submission(dataset: PreparedDataset) -> None:
    """Updates are differences from the first model, and infinity has none."""
    line = "low holds NaN or infinity that becomes a number by step 1 .* let it begin with numbers"
    with pytest.raises(SpecError, match=line):
        tried(dataset, Lowest, learning_rate=0.001)
    tried(dataset, lambda: Lowest(after=1000), learning_rate=0.001)  # but it may stay


def test_infinity_that_becomes_a_number_later_fails_the_first_training(
    dataset: PreparedDataset,
) -> None:
    """With a line that is the spec's, so that no worker trains it again."""
    loaded = with_network(Spec.make({**BASE, "learning_rate": 0.001}), dataset, lambda: Lowest(3))
    training = ShardTraining(
        loaded, loaded.network(), LocalTask(indices=SHARDS[0], round=0, shard=0)
    )
    training.advance(3)
    training.parameters()
    training.advance(1)
    with pytest.raises(SpecError, match=r"low holds NaN or infinity that becomes .* by step 4"):
        training.parameters()


class Scripted(nn.Module):
    """A network that torch compiles; it keeps a tensor that it makes at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(x.flatten(1)).relu()
        return shown


class Caching(Scripted):
    """Makes a table at its first call and keeps it, as rotary embeddings do."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(4)
        return super().forward(x) * self.table


@pytest.mark.parametrize("network", [lambda: torch.jit.script(Scripted()), Caching])
def test_an_evaluation_leaves_a_network_trainable(
    dataset: PreparedDataset, network: Callable[[], nn.Module]
) -> None:
    """In inference mode, a compiled network or a tensor made there could train no more."""
    loaded = with_network(Spec.make(BASE), dataset, network)
    built = loaded.network()
    evaluate(built, loaded)
    x = torch.ones(2, 64)
    built(x).sum().backward()
    evaluate(built, loaded)
    tried(dataset, network)


class Refusing(Scripted):
    """One of a module's own methods, which users may override, raises an error."""

    def __init__(self, method: str) -> None:
        super().__init__()
        setattr(self, method, self.refuse)

    def refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("not in this network")


@pytest.mark.parametrize(
    "method",
    ["train", "eval", "state_dict", "named_modules", "named_parameters", "parameters", "buffers"],
)
def test_an_error_in_any_method_of_a_network_is_a_refusal(
    dataset: PreparedDataset, method: str
) -> None:
    """With the line that raises it, wherever in the trial that is."""
    spec = Spec.make({**BASE, "model": "nets:net"})
    loaded = with_network(spec, dataset, lambda: Refusing(method))
    line = r"NotImplementedError: not in this network \(test_odd_tensors.py:\d+ in refuse\)"

    def tried() -> None:
        loaded.check_fit(loaded.network())
        check_trains(loaded, SHARDS)

    with pytest.raises(SpecError, match=line):
        tried()
