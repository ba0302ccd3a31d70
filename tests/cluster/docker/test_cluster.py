"""A cluster in containers trains as the README says, and admits only who belongs to it."""

import ipaddress
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.docker.conftest import (
    EXAMPLE,
    OPTIONS,
    ROOT,
    Outcome,
    Project,
    docker,
    inspected_until,
    small_mnist,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_learns(undisturbed: Outcome) -> None:
    """The client stays until the end and prints how good the model became."""
    table = undisturbed.printed
    last = re.findall(r"^ +3 +([\d.]+) ", table, re.MULTILINE)
    assert last, table
    assert float(last[0]) > 85


def test_containers_train_the_same_bytes_as_anybody(
    cluster: Project, undisturbed: Outcome, data_dir: Path, tmp_path: Path
) -> None:
    """As a run without containers where the numerics agree, else as another run with them."""
    words = ["run", EXAMPLE, *OPTIONS, "--workers", "2", "--json"]
    words += ["--shared", str(tmp_path), "--data-dir", str(data_dir)]
    command = [sys.executable, "-m", "downpour", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    folder = tmp_path / "experiments" / json.loads(done.stdout)["experiment"]
    lines = (folder / "record.jsonl").read_text().splitlines()
    here = {json.loads(line).get("numeric_class") for line in lines}
    there = {fact.get("numeric_class") for fact in cluster.record(undisturbed.experiment)}
    if here == there:
        other = (folder / "model.safetensors").read_bytes()
    else:
        experiment = cluster.client.submit(small_mnist().to_toml())
        cluster.finished(experiment)
        other = cluster.model(experiment)
    assert other == undisturbed.model


def test_the_token_is_for_the_cluster_alone(cluster: Project, undisturbed: Outcome) -> None:
    """Its file is its owner's, and it is in no log, no command line and no environment."""
    assert undisturbed.model
    assert docker("exec", cluster.manager, "stat", "-c", "%a %U", "/shared/token") == "600 downpour"
    token = cluster.token
    assert len(token) > 16
    containers = [cluster.manager, *cluster.containers("worker")]
    assert len(containers) == 6
    for container in containers:
        logged = subprocess.run(["docker", "logs", container], capture_output=True, check=True)
        shown = docker("top", container, "-eo", "pid,args") + docker("inspect", container)
        assert "downpour" in shown
        assert token not in shown
        assert token.encode() not in logged.stdout + logged.stderr


def test_a_stranger_is_refused_in_one_line(
    cluster: Project, undisturbed: Outcome, image: str
) -> None:
    """Each ends with status 2, and a run that is under way does not notice."""
    experiment = cluster.client.submit(small_mnist().to_toml())
    cluster.status_when(lambda status: bool(status.tasks), experiment)
    strangers = {
        "it sees a different folder": _stranger(cluster, image, {"/shared": "", "/real": "shared"}),
        "the manager cannot call back": _stranger(
            cluster, image, {"/shared": "shared", "/real": "shared"}, *_address_of_nobody(cluster)
        ),
        "a token": _stranger(cluster, image, {"/shared": "shared"}),
    }
    for reason, container in strangers.items():
        status = docker("wait", container)
        logged = subprocess.run(
            ["docker", "logs", container], capture_output=True, text=True, check=True
        )
        docker("rm", "--volumes", container)
        assert (status, logged.stdout) == ("2", "")
        assert logged.stderr.startswith("downpour: ")
        assert logged.stderr.count("\n") == 1, logged.stderr
        assert reason in logged.stderr
    cluster.finished(experiment)
    record = cluster.record(experiment)
    told = {fact["kind"] for fact in record if fact.get("failure") != "handed_over"}
    assert not {"attempt-failed", "worker-left"} & told
    assert len(cluster.client.status("", 0, 0.0).workers) == 5
    assert cluster.model(experiment) == undisturbed.model


def _stranger(cluster: Project, image: str, mounts: Mapping[str, str], *advertise: str) -> str:
    """Start a worker with other volumes; one that mounts the true one as /real has the token."""
    words = ["run", "--detach", "--network", cluster.network]
    for target, source in mounts.items():
        words += ["--volume", f"{cluster.volume}:{target}" if source else target]
    if "/real" in mounts:
        words += ["--env", "DOWNPOUR_TOKEN_FILE=/real/token"]
    return docker(*words, image, "worker", "--manager", "manager:9090", *advertise)


def _address_of_nobody(cluster: Project) -> tuple[str, str]:
    subnet = docker(
        "network", "inspect", "-f", "{{(index .IPAM.Config 0).Subnet}}", cluster.network
    )
    return "--advertise", str(ipaddress.ip_network(subnet)[-2])


def test_health_checks_turn_healthy(cluster: Project, undisturbed: Outcome) -> None:
    """Each container asks its own service over Thrift."""
    assert undisturbed.model
    containers = [cluster.manager, *cluster.containers("worker")]
    inspected_until("{{.State.Health.Status}}", "healthy", containers)


def test_a_process_of_the_image_compiles_nothing(image: str) -> None:
    """The user of the image cannot keep bytecode, so each process would compile it once more."""
    code = (
        "import sys, os, torch, downpour.cli.serving, downpour.cluster.manager.process;"
        "caches = [getattr(one, '__cached__', None) for one in list(sys.modules.values())];"
        "print(*(name for name in caches if isinstance(name, str) and not os.path.exists(name)))"
    )
    assert docker("run", "--rm", "--entrypoint", "python", image, "-c", code) == ""
