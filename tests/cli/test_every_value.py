"""Every documented value of every field, through each door: `run`, `submit` and `downpour.run`.

A value's way through the doors ends when the manager has accepted the experiment. From there, all
experiments take one way. So a launcher without workers stands in, and the manager of all doors is
one that trains another experiment first. Options, TOML and Python each write the values down.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Self, get_args

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import save_file

import downpour
from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers import cluster
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.core.families import FAMILIES
from downpour.core.spec import Spec
from downpour.core.spec_fields import Outer
from downpour.host.paths import Credentials
from tests.cli.conftest import Downpour, Outcome, own_signals
from tests.cli.conftest import downpour as command

__all__ = ["command", "own_signals"]

pytestmark = pytest.mark.slow

Fields = Mapping[str, Any]
Door = Callable[[Fields], str]

BASE: Fields = {"shards": 4, "epochs": 2}
WORKERS = 6
CODE = """
from downpour import Task

class Lab(Task):
    def __init__(self, rows=4, **others): ...
    def model(self): ...
    def examples(self, part): ...
    def loss(self, model, batch): ...

def network(**options): ...
def examples(**options): ...
"""

TEXTS: dict[str, list[Fields]] = {
    "name": [{"name": "a"}, {"name": "0.A_b-9"}],
    "seed": [{"seed": 0}, {"seed": 2**63 - 1}],
    "task": [{"task": "lab:Lab"}],
    "task_options": [{"task": "lab:Lab", "task_options": {"rows": 3, "a": [1, 2], "b": True}}],
    "dataset": [
        *({"dataset": name} for name in ("digits", "mnist", "fashion-mnist", "kmnist", "cifar10")),
        {"dataset": "lab:examples"},
    ],
    "data_path": [
        {"dataset": "npz", "data_path": "few.npz"},
        {"dataset": "folder", "data_path": "images"},
        {"dataset": "npz", "data_path": "s3://bucket/few.npz"},
    ],
    "dataset_options": [{"dataset": "lab:examples", "dataset_options": {"rows": 3}}],
    "model": [
        *({"model": name} for name in ("digits-cnn", "mnist-cnn", "mlp", "xray-cnn", "conv-lstm")),
        {"model": "resnet18"},
        {"model": "lab:network"},
    ],
    "model_options": [{"model_options": {"dropout": 0.5}}],
    "init_from": [{"init_from": "few.safetensors"}, {"init_from": "none"}],
    "init_checksum": [{"init_from": "few.safetensors", "init_checksum": "0" * 32}],
    "outer_checksum": [{"init_from": "few.safetensors", "outer_checksum": "0" * 32}],
    "states_checksum": [{"init_from": "few.safetensors", "states_checksum": "0" * 32}],
    "best_checksum": [{"init_from": "few.safetensors", "best_checksum": "0" * 32}],
    "rounds_before": [{"init_from": "few.safetensors", "rounds_before": 3}],
    "code": [{"code": {"lab.py": "0"}}],
    "code_bundle": [{"code_bundle": "0" * 64}],
    "packages": [{"packages": {"torch": "2"}}],
    "data_key": [{"data_key": "digits-0"}],
    "mode_options": [
        {"mode": "k-sync", "mode_options": {"k": 2}},
        {"mode": "ssp", "mode_options": {"bound": 2}},
        {"mode": "sync", "mode_options": {"k": 2}},
    ],
    "policy_options": [
        {"policy": "late", "policy_options": {"slowness": 2.0}},
        {"policy": "wait", "policy_options": {"slowness": 2.0}},
    ],
    "needs": [{"needs": ["gpu=a100", "site"]}],
    "prefers": [{"prefers": ["gpu=a100", "site"]}],
    "shard_needs": [{"shard_needs": {"0": ["site"]}}, {"shard_needs": {"4": ["site"]}}],
    "standbys": [{"standbys": 2}, {"standbys": 2, "policy": "replace"}],
    "keep_best": [{"keep_best": name} for name in ("loss", "accuracy", "max:loss", "min:accuracy")],
    "validation": [{"validation": 0.2}],
    "meet": [{"meet": "auto"}, {"meet": 3}],
    "betas": [{"optimizer": "adam", "betas": [0.8, 0.99]}],
    "inside": [
        {"inside": {"how": "data", "processes": 2}},
        {"inside": {"how": "pipeline", "processes": 2, "cut": ["2"]}},
        {"inside": {"how": "hybrid", "processes": 2}},
    ],
    "outer": [
        {"outer": {"optimizer": name}}
        for name in get_args(Outer.model_fields["optimizer"].annotation)
    ],
    "device": [{"device": name} for name in ("cpu", "auto", "cuda", "cuda:1", "mps", "xpu")],
    "nesterov": [{"nesterov": True}, {"nesterov": False}],
    "model_compression": [{"model_compression": "int3", "keep_best": "loss"}],
    "decay": [{"schedule": "step", "decay": 0.5, "decay_every": 2}],
}


SCHEMA = Spec.model_json_schema()


def values_of(field: str) -> list[Fields]:
    """Return the values to try: all members of a family or a choice, the limits of a number."""
    found = list(TEXTS.get(field, ()))
    if field in FAMILIES:
        return found + [{field: name} for name in FAMILIES[field].examples]
    schema = SCHEMA["properties"][field]
    for kind in schema.get("anyOf", [schema]):
        found += [
            {field: one} for one in kind.get("enum", [kind["const"]] if "const" in kind else [])
        ]
        if kind.get("type") == "boolean":
            found += [{field: False}, {field: True}]
        if kind.get("type") in {"integer", "number"}:
            limits = [kind[limit] for limit in ("minimum", "maximum") if limit in kind]
            found += [{field: float(one) if kind["type"] == "number" else one} for one in limits]
            if "exclusiveMinimum" in kind:
                found += [{field: 0.25}]
    return found


VALUES = {field: values_of(field) for field in Spec.model_fields}
ALL = list(chain.from_iterable(VALUES.values()))


def test_every_field_has_values() -> None:
    """A new field needs no test of its own."""
    assert {field for field, values in VALUES.items() if not values} == set()
    assert {name for fields in ALL for name in fields} == set(Spec.model_fields)


@dataclass(frozen=True)
class Reception:
    """A launcher's cluster whose manager is there already, and which no worker ever joins."""

    address: str
    log: Path
    credentials: Credentials = field(default_factory=Credentials)
    workers: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""

    def check(self) -> None:
        """End the wait for an experiment that the manager has accepted."""
        raise LaunchError("accepted")

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start no worker."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that values name."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "lab.py").write_text(CODE)
    (folder / "log").touch()
    (folder / "specs").mkdir()
    np.savez(folder / "few.npz", x=np.zeros((8, 4), np.float32), y=np.arange(8) % 2)
    (folder / "images" / "a").mkdir(parents=True)
    save_file({"a": np.zeros(3, np.float32)}, folder / "few.safetensors")
    return folder


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[downpour.Client]:
    """A client of a manager that prepares nothing: its first experiment waits for workers."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("DOWNPOUR_ALLOW", "lab")
        patched.setenv("DOWNPOUR_CODE", str(place))
        manager = start_manager(ManagerOptions(shared=str(place / "shared"), port=0))
        here = Reception(str(manager.address), place / "log")
        patched.setattr(cluster, "INLINE", replace(cluster.INLINE, make=lambda _: lambda _: here))
        with downpour.Client(here.address, shared=place / "shared") as client:
            client.submit({"shards": 1, "train_limit": 50, "test_limit": 10})
            yield client
        manager.close()


class Doors:
    """The three doors; each returns the resolved spec as text, or the line that refuses it."""

    def __init__(self, client: downpour.Client, command: Downpour, place: Path) -> None:
        self._client, self._command, self._place = client, command, place
        self._known = {path.name for path in (place / "shared" / "experiments").iterdir()}

    def by_run(self, fields: Fields) -> str:
        """`downpour run`, with options."""
        words = ("run", "--on", "inline", "--workers", WORKERS, "--shared", self._place / "shared")
        ended = self._command(*words, *_options(fields))
        return self._accepted() if "accepted" in ended.err else self._refused(ended)

    def by_submit(self, fields: Fields) -> str:
        """`downpour submit`, with a file."""
        file = self._place / "specs" / "spec.toml"  # not in the current folder, where `run` looks
        file.write_text(tomli_w.dumps(dict(fields)))
        ended = self._command("submit", "--shared", self._place / "shared", file)
        return self._accepted() if ended.status == 0 else self._refused(ended)

    def by_python(self, fields: Fields) -> str:
        """`downpour.run`, with a mapping."""
        try:
            downpour.run(
                dict(fields),
                workers=WORKERS,
                shared=self._place / "shared",
                on="inline",
                progress=False,
            )
        except SpecError as refused:
            return str(refused)
        except LaunchError:
            return self._accepted()
        raise AssertionError("it trained")

    def _accepted(self) -> str:
        there = {path.name for path in (self._place / "shared" / "experiments").iterdir()}
        [new] = there - self._known
        self._known.add(new)
        spec = (self._place / "shared" / "experiments" / new / "spec.toml").read_text()
        self._client.cancel(new)
        return spec

    def _refused(self, ended: Outcome) -> str:
        assert ended.status == 2, ended
        lines = [line for line in ended.err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1, ended
        return lines[0].removeprefix("downpour: ")


def _options(fields: Fields) -> list[str]:
    words: list[str] = []
    for name, value in fields.items():
        flag = f"--{name.replace('_', '-')}"
        match value:
            case bool():
                words += [flag if value else f"--no-{flag[2:]}"]
            case Mapping():
                for key, inner in value.items():
                    words += [flag, f"{key}={_toml(inner)}"]
            case list():
                words += [flag, ",".join(map(str, value))]
            case _:
                words += [flag, str(value)]
    return words


def _toml(value: object) -> str:
    return tomli_w.dumps({"v": value}).partition("= ")[2].strip().replace("\n", " ")


@pytest.fixture
def doors(client: downpour.Client, command: Downpour, place: Path) -> Doors:
    """The doors to one manager."""
    return Doors(client, command, place)


def _doors_for(doors: Doors, fields: Fields) -> list[Door]:
    """Return the doors that answer alike: `submit` knows no workers, `run` starts some."""
    own: list[Door] = [doors.by_run, doors.by_python]
    return own if {"needs", "shard_needs"} & fields.keys() else [*own, doors.by_submit]


@pytest.mark.parametrize("field", list(VALUES))
def test_each_door_takes_a_value_alike(doors: Doors, field: str) -> None:
    """With the same resolved spec, or refused in the same line."""
    for fields in VALUES[field]:
        asked = {**BASE, **fields}
        answers = [door(asked) for door in _doors_for(doors, asked)]
        assert len(set(answers)) == 1, (fields, *answers)


def test_pairs_of_values_are_taken_alike(doors: Doors) -> None:
    """Fields that contradict each other are refused in the same words."""
    random = Random(44)
    for _ in range(60):
        asked = {**BASE, **random.choice(ALL), **random.choice(ALL)}
        answers = [door(asked) for door in _doors_for(doors, asked)]
        assert len(set(answers)) == 1, (asked, *answers)
