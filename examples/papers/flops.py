"""Floating-point operations of an epoch: by formula, and as torch counts them in a training step.

The formulas are our reading of equations (1) to (3) of ConvLSTM-D-Accel. A multiplication and an
addition are two operations. For one example

    (1) a convolution takes  2 * C_in * K_h * K_w * C_out * H_out * W_out,
    (2) a dense layer takes  2 * N_in * N_out,

and (3) an epoch takes three times its examples' forward passes. Going backward takes two products
for each one forward: for the weights' gradient and for that of the layer's input. An LSTM takes at
each step as many operations as its four gates' matrices do as dense layers. Biases, poolings and
activations are left out, as usual.

Torch's counter (`torch.utils.flop_counter`) looks on while a step is computed, and so differs where

- nothing needs the gradient: that of the examples, the first layer's input, and that of an LSTM's
  first state, all zeros. One forward pass of the first layer is saved, and one product of the
  LSTM's recurrent matrix for each example;
- it does not know the operation: an LSTM on the CPU is one call of a kernel, of which it counts
  nothing. On torch's device without memory (`meta`) an LSTM is taken apart into its products.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from downpour.base.names import CPU
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.models import outputs_needed
from downpour.learning.tasks.batches import batch_loss

Counted = nn.Conv2d | nn.Linear | nn.LSTM

_PASSES = 3
"""The cost of a step, in forward passes."""
_NO_MEMORY = "meta"


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """A layer by its name in the network, and what it takes to bring one example forward."""

    name: str
    forward: int


def layers_flops(model: nn.Module, sample_shape: tuple[int, ...]) -> tuple[LayerFlops, ...]:
    """Return what each convolution, dense layer and LSTM takes for an example, in their order.

    Args:
        model: the network; it stays as it is.
        sample_shape: of an example, without the batch.
    """
    layers: list[LayerFlops] = []
    twin = copy.deepcopy(model).eval()

    def enter(name: str, layer: Counted) -> None:
        def saw(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            layers.append(LayerFlops(name, _forward_flops(layer, inputs[0], output)))

        layer.register_forward_hook(saw)

    for name, layer in twin.named_modules():
        if isinstance(layer, Counted):
            enter(name, layer)
    first = next(twin.parameters())
    with torch.no_grad():
        twin(torch.zeros(1, *sample_shape, device=first.device))
    return tuple(layers)


def epoch_flops(layers: tuple[LayerFlops, ...], examples: int) -> int:
    """Return the operations of an epoch of `examples` examples, by equation (3)."""
    return _PASSES * examples * sum(layer.forward for layer in layers)


def counted_flops(
    model: nn.Module, spec: Spec, facts: DatasetFacts, *, taken_apart: bool = False
) -> int:
    """Return what torch counts of an epoch: of one training step, for as many steps as it takes.

    The step is a real one, forward and backward, on examples of zeros. The cost of a batch is
    in proportion to its size, so the smaller batches at the ends of shards make no difference.

    Args:
        model: the network of the spec; it stays as it is.
        spec: names precision, loss and the size of a batch.
        facts: of the dataset.
        taken_apart: count on torch's device without memory, where an LSTM is no single kernel.
    """
    twin = copy.deepcopy(model).to(_NO_MEMORY) if taken_apart else copy.deepcopy(model)
    device = next(twin.parameters()).device
    examples = torch.zeros(spec.batch_size, *facts.sample_shape, device=device)
    shape = (spec.batch_size,) if facts.classes else (spec.batch_size, outputs_needed(spec, facts))
    targets = torch.zeros(shape, dtype=torch.int64, device=device)
    spec = spec.replace(device=CPU)  # where the model is, or whose kernels it would have
    kept = torch.random.fork_rng(devices=[])  # torch's generators
    with numerics.settings(spec), kept, FlopCounterMode(display=False) as counter:
        with numerics.precision(spec):
            output = twin.train()(examples)
        batch_loss(output, targets, spec).backward()  # type: ignore[no-untyped-call]
    counted: int = counter.get_total_flops()
    return counted * facts.train_samples // spec.batch_size


def _forward_flops(layer: Counted, taken: Tensor, output: Tensor) -> int:
    """Return what a layer took for the one example that it was shown."""
    if isinstance(layer, nn.LSTM):
        steps = taken.shape[1 if layer.batch_first else 0]
        matrices = (value for value in layer.parameters() if value.dim() == 2)
        return 2 * int(steps) * sum(value.numel() for value in matrices)
    # Each output of a convolution or a dense layer takes one product with its row of the weights.
    return 2 * layer.weight[0].numel() * output.numel()
