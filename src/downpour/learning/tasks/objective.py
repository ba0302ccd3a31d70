"""The losses, and the count of correct outputs; in float32, even for a bfloat16 network."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from downpour.core.spec import Spec


def batch_loss(output: Tensor, targets: Tensor, spec: Spec) -> Tensor:
    """Return the mean loss of a batch.

    Args:
        output: [b, classes]; with binary cross-entropy logits [b], [b, 1] or [b, k].
        targets: class numbers [b], or zeros and ones [b, k].
        spec: names the loss.
    """
    if spec.loss == "cross_entropy":
        return functional.cross_entropy(output.float(), targets)
    logits = output.float().reshape(targets.shape)
    return functional.binary_cross_entropy_with_logits(logits, targets.float())


def correct(output: Tensor, targets: Tensor, spec: Spec) -> Tensor:
    """Return which outputs are correct, as booleans in the targets' shape; a logit above 0 is 1."""
    if spec.loss == "cross_entropy":
        return output.argmax(dim=1) == targets
    return (output.reshape(targets.shape) > 0) == (targets > 0)
