"""A call from Python with arguments that a function does not take: one line of ours says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import downpour
from downpour import launchers
from downpour.base.errors import SpecError
from downpour.base.names import checked_call, nearest

SPEC = {"epochs": 1}
# Without types, as in a notebook: a type checker tells of all these.
API: Any = downpour
OPTIONS: Any = launchers


@checked_call(["epochs"])
def train(spec: object, *, workers: int = 1, shared: str = "") -> object:
    """Stand for a function of ours."""
    return spec, workers, shared


TRAIN: Any = train


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: TRAIN(SPEC, worker=2), "worker = 2: … train(); did you mean workers?"),
        (
            lambda: TRAIN(SPEC, epochs=2),
            "epochs = 2: is a field of the spec, not an argument of train()",
        ),
        (TRAIN, "spec = None: is required by train()"),
        (
            lambda: TRAIN(SPEC, 2),
            "train = 2: too many positional arguments; name each argument after",
        ),
        (lambda: API.run(SPEC, worker=2), "worker = 2: … run(); did you mean workers?"),
        (lambda: API.run(epochs=3), "epochs = 3: is a field of the spec, not an argument of run()"),
        (lambda: API.run(SPEC, 2), "run = 2: too many positional arguments"),
        (lambda: API.Client(share="x"), "share = 'x': … Client(); did you mean shared?"),
        (lambda: API.Credentials(tokn="x"), "tokn = 'x': … Credentials(); did you mean token?"),
        (
            lambda: API.load_model(sources="x"),
            "sources = 'x': … load_model(); did you mean source?",
        ),
        (API.replay, "experiment = None: is required by replay()"),
        (lambda: API.replay("x", util=3), "util = 3: … replay(); did you mean until?"),
        (lambda: API.resumed(epochs=3), "experiment = None: is required by resumed()"),
        (
            lambda: OPTIONS.RayOptions(gpu_per_worker=1),
            "gpu_per_worker = 1: … RayOptions(); did you mean gpus_per_worker?",
        ),
        (
            lambda: OPTIONS.SlurmOptions(partitions="gpu"),
            "partitions = 'gpu': … SlurmOptions(); did you mean partition?",
        ),
        (lambda: OPTIONS.SshOptions(host="x"), "host = 'x': … SshOptions(); did you mean hosts?"),
        (
            lambda: OPTIONS.ComposeOptions(imag="x"),
            "imag = 'x': … ComposeOptions(); did you mean image?",
        ),
    ],
)
def test_a_wrong_argument_is_an_error_of_ours(call: Callable[[], Any], line: str) -> None:
    """It names the argument, its value, and what was probably meant."""
    with pytest.raises(SpecError) as refused:
        call()
    assert str(refused.value).startswith(line.replace("…", "no such argument of"))


def test_a_clients_methods_name_their_arguments_too() -> None:
    """Nothing is asked of a manager for them."""
    with API.Client("127.0.0.1:1") as client:
        with pytest.raises(SpecError, match=r"experiments = 'x': no such .* Client.wait\("):
            client.wait(experiments="x")
        with pytest.raises(SpecError, match=r"spec = None: is required by Client.submit\(\)"):
            client.submit()


def test_a_right_call_is_the_functions_own() -> None:
    """By place or by name, and with its defaults."""
    assert train(SPEC, workers=2) == train(spec=SPEC, workers=2) == (SPEC, 2, "")


def test_a_type_error_inside_is_not_taken_for_the_calls() -> None:
    """Only the arguments are judged."""

    @checked_call()
    def fails(number: int) -> int:
        return number + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        fails(1)


@pytest.mark.parametrize(
    ("unknown", "line"),
    [
        ("epoch", "did you mean epochs?"),
        ("lr", "did you mean learning_rate?"),
        ("num_train_epochs", "did you mean epochs?"),
        ("zzz", "the nearest are "),
    ],
)
def test_a_close_name_is_proposed(unknown: str, line: str) -> None:
    """By its letters, or by its initials."""
    assert nearest(unknown, ["epochs", "learning_rate", "seed"]).startswith(line)
