"""Options, data and losses that do not fit a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from downpour.errors import SpecError
from downpour.models import build, check_fit, outputs_needed
from downpour.spec import Spec

from .conftest import facts_of


@pytest.mark.parametrize(
    ("model", "options", "field"),
    [
        ("mnist-cnn", {"dropuot": 0.1}, "model_options.dropuot"),
        ("mnist-cnn", {"dropout": 1.5}, "model_options.dropout"),
        ("mlp", {"hidden": [0]}, "model_options.hidden"),
        ("digits-cnn", {"width": 3}, "model_options.width"),
        ("xray-cnn", {"hidden": 0}, "model_options.hidden"),
        ("xray-cnn", {"dropout": -0.1}, "model_options.dropout"),
        ("conv-lstm", {"channels": [16, 0]}, "model_options.channels"),
        ("conv-lstm", {"hidden": [8]}, "model_options.hidden"),
    ],
)
def test_options_that_do_not_fit_are_named(
    model: str, options: dict[str, object], field: str
) -> None:
    """The refusal names the option and what would be accepted."""
    with pytest.raises(SpecError) as refusal:
        build(Spec.make({"model": model, "model_options": options}), facts_of((1, 50, 50)))
    assert refusal.value.field == field


@pytest.mark.parametrize("shape", [(7,), (1, 2, 2)])
@pytest.mark.parametrize("model", ["mnist-cnn", "xray-cnn", "conv-lstm"])
def test_images_too_small_and_plain_numbers_are_refused(model: str, shape: tuple[int, ...]) -> None:
    """A convolutional network says what it needs."""
    with pytest.raises(SpecError, match="needs images of at least"):
        build(Spec.make({"model": model}), facts_of(shape))


def test_an_output_that_does_not_fit_the_labels_is_refused() -> None:
    """Nine outputs for ten classes cost one line before anything is trained."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 9))
    with pytest.raises(SpecError, match=r"\(examples, 10\)"):
        check_fit(model, Spec.make({"model": "mlp"}), facts_of())


def test_a_network_that_does_not_take_the_examples_is_refused() -> None:
    """Torch's complaint becomes one line that names the examples' shape."""
    with pytest.raises(SpecError, match=r"shape \(1, 28, 28\)") as refusal:
        check_fit(nn.Linear(5, 10), Spec.make({"model": "mlp"}), facts_of())
    assert "\n" not in str(refusal.value)


def test_parameters_that_files_cannot_hold_are_refused() -> None:
    """Numpy has no bfloat16; mixed precision keeps parameters in float32 anyway."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(torch.bfloat16)
    with pytest.raises(SpecError, match="float32"):
        check_fit(model, Spec.make({"model": "mlp"}), facts_of())


def test_trying_a_network_leaves_it_as_it_is() -> None:
    """Running statistics and the training mode are the same afterwards."""
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(784, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_fit(model, Spec.make({}), facts_of())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("loss", "classes", "targets", "outputs"),
    [
        ("cross_entropy", 10, 1, 10),
        ("binary_cross_entropy", 2, 1, 1),
        ("binary_cross_entropy", 0, 4, 4),
        ("cross_entropy", 0, 4, None),
        ("binary_cross_entropy", 3, 1, None),
    ],
)
def test_the_loss_decides_how_many_outputs(
    loss: str, classes: int, targets: int, outputs: int | None
) -> None:
    """One for each class or target, one for two classes; a refusal where they do not fit."""
    spec, facts = Spec.make({"loss": loss}), facts_of(classes=classes, targets_per_sample=targets)
    if outputs is None:
        with pytest.raises(SpecError, match="loss"):
            outputs_needed(spec, facts)
    else:
        assert outputs_needed(spec, facts) == outputs
