"""Python calls that cannot be meant: each raises a `DownpourError` of one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import downpour
from downpour.cli.printing import LINE_CHARACTERS_MAX

d: Any = downpour  # calls that a type checker would refuse are what this is about
Call = Callable[[], object]

CALLS: list[tuple[str, Call]] = [
    ("epoch = 3: no such field; did you mean epochs?", lambda: d.Spec(epoch=3)),
    ("epochs = '3': must be a whole number", lambda: d.Spec(epochs="3")),
    ("epochs = 0: must be a whole number", lambda: d.Spec(epochs=0)),
    ("betas = 0.9: must be two numbers", lambda: d.Spec(betas=0.9)),
    ("model = <built-in function print>", lambda: d.Spec(model=print)),
    ("model_options.f = <built-in function print>", lambda: d.Spec(model_options={"f": print})),
    ("split = 'x'", lambda: d.Spec().replace(split="x")),
    ("zzz = 1: no such field", lambda: d.Spec().replace(zzz=1)),
    ("seed = 1: specs are immutable", lambda: setattr(d.Spec(), "seed", 1)),
    ("TOML = 'x'", lambda: d.Spec.from_toml("x")),
    ("spec = 5: must be a Spec, its fields by name", lambda: d.run(5)),
    ("spec = None: must be a Spec, its fields by name", lambda: d.run(None)),
    ("epoch = 3: no such field; did you mean epochs?", lambda: d.run({"epoch": 3})),
    ("spec = <class 'downpour.core.spec.Spec'>", lambda: d.run(d.Spec)),
    ("spec = '': must be a path", lambda: d.run("")),
    ("FILE = 'nowhere.toml'", lambda: d.run("nowhere.toml")),
    ("FILE = 'nowhere.toml'", lambda: d.run(Path("nowhere.toml"))),
    ("workers = '4': must be a whole number, at least 1", lambda: d.run(workers="4")),
    ("workers = True", lambda: d.run(workers=True)),
    ("workers = 0", lambda: d.run(workers=0)),
    ("standbys = 1", lambda: d.run({"standbys": 1, "policy": "late"}, workers=1)),
    ("slow = 'worker-1=0'", lambda: d.run(slow={"worker-1": 0})),
    ("slow = 'worker-1=0.5': needs --on local", lambda: d.run(slow={"worker-1": 0.5}, on="inline")),
    ("shared = ''", lambda: d.run(shared="")),
    (r"shared = 'a\x00b'", lambda: d.run(shared="a\0b")),
    ("data_dir = 3", lambda: d.run(data_dir=3)),
    ("data_dir = 'nowhere': no such folder", lambda: d.run(data_dir="nowhere")),
    ("patience = 'x': must be a number from 0.1 to 1000", lambda: d.run(patience="x")),
    ("patience = nan", lambda: d.run(patience=float("nan"))),
    ("on_status = 'x'", lambda: d.run(on_status="x")),
    ("tensorboard = 3", lambda: d.run(tensorboard=3)),
    ("on_round = 'x': must be a function that takes an epoch", lambda: d.run(on_round="x")),
    ("on_event = 3: must be a function that takes an event", lambda: d.run(on_event=3)),
    ("loggers = 'csv:x': must be a list", lambda: d.run(loggers="csv:x")),
    ("loggers = 3: must be a string such as", lambda: d.run(loggers=[3])),
    ("log = 'frob': must be csv, mlflow, wandb", lambda: d.run(loggers=["frob"])),
    ("dataset = 'frob'", lambda: d.run({"dataset": "frob"})),
    ("data_path = 'no.npz'", lambda: d.run({"dataset": "npz", "data_path": Path("no.npz")})),
    ("manager = 3", lambda: d.Client(3)),
    ("manager = 'host:x'", lambda: d.Client("host:x")),
    ("shared = ''", lambda: d.Client("localhost:1", shared="")),
    ("token_file = 'nowhere'", lambda: d.Client(credentials=d.Credentials(token_file="nowhere"))),
    ("127.0.0.1:1 cannot be reached", lambda: d.Client("127.0.0.1:1").experiments()),
    (
        "127.0.0.1:1 cannot be reached",
        lambda: d.Client("127.0.0.1:1", connect_seconds=0.0).submit(d.Spec()),
    ),
    ("epochs = 0", lambda: d.Client("127.0.0.1:1").submit({"epochs": 0})),
    ("FILE = 'no.toml'", lambda: d.Client("127.0.0.1:1").submit("no.toml")),
    ("allow = 3: must be a module's name", lambda: d.allow(3)),
    ("model = 3: must be a path", lambda: d.load_model(3)),
    ("model = 'nowhere': no such file", lambda: d.load_model("nowhere")),
    ("spec = 3: must be a Spec", lambda: d.load_model("x", spec=3)),
    ("resume = 'none-1': no such experiment", lambda: d.resumed("none-1")),
    ("ID = 'none-1': no such experiment", lambda: d.replay("none-1", shared=".")),
    ("ID = 3: must be an experiment's ID", lambda: d.replay(3, shared=".")),
    ("shared directory ", lambda: d.replay("x", shared="nowhere")),
    ("data_dir = 3: must be a path", lambda: d.replay("x", data_dir=3)),
    ("init_from = 3: must be text", lambda: d.Spec(init_from=3)),
    ("init_from = 'nowhere'", lambda: d.run({"init_from": Path("nowhere")})),
    ("folder = 3", lambda: d.Result.read(3)),
    ("nowhere/record.jsonl: no such file", lambda: d.Result.read("nowhere")),
    ("record: ", lambda: d.Result.from_lines(["{}"])),
    ("record: ", lambda: d.Result.from_lines([])),
]


@pytest.mark.parametrize(("line", "call"), CALLS, ids=[f"{n}-{c[0]}" for n, c in enumerate(CALLS)])
def test_python_raises_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, call: Call
) -> None:
    """It names what is wrong, and nothing was begun."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(downpour.DownpourError) as refused:
        call()
    said = str(refused.value)
    assert said.startswith(line)
    assert "\n" not in said
    assert len(said) <= LINE_CHARACTERS_MAX
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["runn", "Specs", "client", "load"])
def test_a_name_that_is_not_there_is_an_attribute_error(name: str) -> None:
    """As of every module."""
    with pytest.raises(AttributeError, match=f"module 'downpour' has no attribute '{name}'"):
        getattr(d, name)
