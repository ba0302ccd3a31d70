"""Operations of an epoch, by formula and as torch counts them."""

import pytest
import torch
from flops import counted_flops, epoch_flops, layers_flops
from torch import nn

from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.models import build

FACTS = DatasetFacts(train_samples=100, test_samples=20, sample_shape=(1, 50, 50), classes=2)
EXAMPLES = FACTS.train_samples


def spec_of(model: str, precision: str = "float32") -> Spec:
    """Return a spec whose batches do not divide the examples evenly."""
    return Spec.make({"model": model, "precision": precision, "batch_size": 16})


def test_the_layers_of_the_cnn_by_hand() -> None:
    """Multiplications and additions of each layer, for one example."""
    spec = spec_of("xray-cnn")
    by_name = {one.name: one.forward for one in layers_flops(build(spec, FACTS), (1, 50, 50))}
    assert by_name == {
        "conv1": 2 * 1 * 5 * 5 * 32 * 46 * 46,
        "conv2": 2 * 32 * 5 * 5 * 64 * 19 * 19,
        "conv3": 2 * 64 * 5 * 5 * 128 * 5 * 5,
        "dense1": 2 * 512 * 512,
        "dense2": 2 * 512 * 2,
    }


def test_an_lstm_takes_its_four_gates_at_every_step() -> None:
    """Two directions, two layers; the sequence's length is what the layer was shown."""
    lstm = nn.LSTM(7, 5, num_layers=2, bidirectional=True, batch_first=True)
    (found,) = layers_flops(lstm, (9, 7))
    gates = 2 * 4 * 5
    assert found.forward == 9 * 2 * (gates * (7 + 5) + gates * (2 * 5 + 5))


def test_groups_take_less() -> None:
    """A convolution by groups sees only its own channels."""
    (found,) = layers_flops(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2)), (4, 6, 6))
    assert found.forward == 2 * 2 * 3 * 3 * 8 * 4 * 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["mlp", "digits-cnn", "mnist-cnn", "xray-cnn"])
def test_torch_leaves_out_the_first_layers_input(name: str, precision: str) -> None:
    """The examples need no gradient: the only difference is one pass of one layer."""
    spec = spec_of(name, precision)
    model = build(spec, FACTS)
    layers = layers_flops(model, FACTS.sample_shape)
    counted = counted_flops(model, spec, FACTS)
    assert epoch_flops(layers, EXAMPLES) - counted == EXAMPLES * layers[0].forward


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_torch_counts_nothing_of_an_lstm_that_is_one_kernel(precision: str) -> None:
    """Taken apart, it differs by the gradients of the first layer's input and the first state."""
    spec = spec_of("conv-lstm", precision)
    model = build(spec, FACTS)
    layers = layers_flops(model, FACTS.sample_shape)
    lstm = next(layer.forward for layer in layers if layer.name == "lstm")
    by_formula = epoch_flops(layers, EXAMPLES)
    apart = counted_flops(model, spec, FACTS, taken_apart=True)
    first_state = 2 * model.get_parameter("lstm.weight_hh_l0").numel()
    assert by_formula - apart == EXAMPLES * (layers[0].forward + first_state)
    if _has_kernel(precision):
        counted = counted_flops(model, spec, FACTS)
        assert by_formula - counted == EXAMPLES * (layers[0].forward + 3 * lstm)


def _has_kernel(precision: str) -> bool:
    """Whether this processor has the one kernel of an LSTM: for bfloat16 few have it."""
    if precision == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def test_counting_leaves_no_trace() -> None:
    """Parameters, gradients, mode, hooks and torch's generator are as before."""
    spec = spec_of("mnist-cnn")
    model = build(spec, FACTS)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    layers_flops(model, FACTS.sample_shape)
    counted_flops(model, spec, FACTS)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(value.grad is None for value in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(layer._forward_hooks for layer in model.modules())
