"""The networks of ConvLSTM-D-Accel."""

from __future__ import annotations

import torch
from torch import nn

from downpour.learning.models.networks import ConvLstm, xray_cnn

from .test_networks import parameter_count


def test_three_poolings_leave_512_numbers_of_50_pixels() -> None:
    """What the paper says of its CNN holds for images of 50 x 50."""
    model = xray_cnn((1, 50, 50), 2)
    assert parameter_count(model) == 520_706
    assert model.get_parameter("dense1.weight").shape == (512, 512)
    poolings = [layer for layer in model.modules() if isinstance(layer, nn.MaxPool2d)]
    assert [layer.kernel_size for layer in poolings] == [2, 2, 2]


def test_an_image_is_read_row_by_row() -> None:
    """Fifty rows, pooled twice, are twelve steps; what is below changes no step above it."""
    model = ConvLstm((1, 50, 50), 2).eval()
    assert parameter_count(model) == 478_850
    steps: list[torch.Tensor] = []
    model.lstm.register_forward_hook(lambda _, __, output: steps.append(output[0]))
    image = torch.randn(1, 1, 50, 50)
    darker = image.clone()
    darker[:, :, 40:] = 0
    model(image), model(darker)
    assert steps[0].shape == (1, 12, 128)
    assert torch.equal(steps[0][:, :9], steps[1][:, :9])
    assert not torch.equal(steps[0][:, -1], steps[1][:, -1])


def test_channels_may_be_any_number_of_convolutions() -> None:
    """Each pools once more; none at all leaves the image's own rows."""
    assert ConvLstm((3, 16, 16), 5, channels=[4, 5, 6])(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
    model = ConvLstm((1, 4, 7), 2, channels=[], hidden=3)
    assert model.get_parameter("lstm.weight_ih_l0").shape == (12, 7)
