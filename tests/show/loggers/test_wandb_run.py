"""Epochs in a real wandb run, which nothing leaves this machine of."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from downpour.base.errors import is_installed
from downpour.show.loggers import WandbRun, logger_of
from tests.show.loggers.conftest import EPOCHS, RUN

pytestmark = pytest.mark.skipif(not is_installed("wandb"), reason="wandb is not installed")

# In a process of its own: wandb changes the process that it runs in.
CODE = """
from downpour.show.loggers import WandbRun
from tests.show.loggers.conftest import logged, resumed

logged(WandbRun("project"))
logged(WandbRun("project"), resumed(3))
"""
READ = """
import json, struct, sys
from wandb.proto import wandb_internal_pb2

def scanned(content, block=32768):
    # Seven bytes of a header, then blocks of parts: a checksum, a length, whether more follows.
    place, whole = 7, b""
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""

for path in sys.argv[1:]:
    told = {"epochs": [], "steps": {}, "config": {}, "exit": None}
    for data in scanned(open(path, "rb").read()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            told |= {"id": record.run.run_id, "project": record.run.project}
            told["config"] |= {one.key: json.loads(one.value_json)
                               for one in record.run.config.update}
        elif kind == "history":
            row = {item.key or item.nested_key[0]: json.loads(item.value_json)
                   for item in record.history.item}
            if "test/accuracy" in row:
                told["epochs"].append([row["epoch"], row["test/accuracy"]])
            else:
                told["steps"][record.history.step.num] = row["step/loss"]
        elif kind == "exit":
            told["exit"] = record.exit.exit_code
    print(json.dumps(told))
"""
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def proxy() -> Iterator[socket.socket]:
    """A listening socket through which every HTTP client would go, and which answers none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, proxy: socket.socket) -> list[Path]:
    """The files of a run and of the one that resumes it."""
    folder = tmp_path_factory.mktemp("wandb")
    address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = {spelled: address for name in names for spelled in (name, name.lower())}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"HOME": str(folder), "PYTHONPATH": path, "WANDB_API_KEY": "0" * 40}
    subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env={**kept, **proxies, **own}, check=True
    )
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_runs_are_written_offline(files: list[Path]) -> None:
    """Each epoch at its number; a resumed experiment has the same identifier, and goes on."""
    read = subprocess.run(
        [sys.executable, "-c", READ, *map(str, files)], capture_output=True, text=True, check=True
    )
    first, second = map(json.loads, read.stdout.splitlines())
    assert first["id"] == second["id"] == RUN.experiment
    assert first["project"] == "project"
    assert first["config"]["shards"] == RUN.spec["shards"]
    assert first["epochs"] == [[epoch.epoch, epoch.accuracy] for epoch in EPOCHS]
    assert [epoch for epoch, _ in second["epochs"]] == [4, 6]
    assert first["steps"] == {"2": 2.0, "4": 1.0, "10": 2.0, "12": 1.0}
    assert list(second["steps"]) == ["14", "16", "22", "24"]
    assert (first["exit"], second["exit"]) == (0, 0)


@pytest.mark.slow
def test_nothing_connects_to_the_network(files: list[Path], proxy: socket.socket) -> None:
    """Neither for the runs nor for wandb's own errors, though there is an API key."""
    assert files
    proxy.settimeout(0.2)
    with pytest.raises(TimeoutError):
        proxy.accept()


def test_the_name_and_a_project_make_one() -> None:
    """As a user types them."""
    assert isinstance(logger_of("wandb:project"), WandbRun)
