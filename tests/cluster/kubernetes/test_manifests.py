"""The manifests for Kubernetes: against its schema, and their commands as processes.

No cluster is started: nothing here says that pods reach each other, or that a volume mounts.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.waiting import until

FOLDER = Path(__file__).parents[3] / "docker" / "kubernetes"
DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "kubernetes.md"
VERSION = "1.31"
PATIENCE_SECONDS = 60


def documents(name: str) -> list[dict[str, Any]]:
    """Return the documents of a manifest."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def kustomization() -> dict[str, Any]:
    """Return what `kubectl apply -k` reads first."""
    (found,) = documents("kustomization.yaml")
    return found


RESOURCES = [(name, one) for name in kustomization()["resources"] for one in documents(name)]
DEPLOYMENTS = {
    one["metadata"]["name"]: one["spec"] for _, one in RESOURCES if one["kind"] == "Deployment"
}


def container(deployment: str) -> dict[str, Any]:
    """Return the one container of a deployment's pods."""
    (found,) = DEPLOYMENTS[deployment]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize(("file", "resource"), RESOURCES)
def test_a_manifest_fits_the_schema(file: str, resource: dict[str, Any]) -> None:
    """Every field is known, and of its type."""
    kubernetes_validate.validate(resource, VERSION, strict=True)
    assert file in kustomization()["resources"]


def test_a_mistake_in_a_manifest_would_be_found() -> None:
    """A number that is a word, and a field that is misspelt."""
    worker = {"apiVersion": "apps/v1", "kind": "Deployment"} | {
        "metadata": {"name": "downpour-worker"},
        "spec": DEPLOYMENTS["downpour-worker"] | {"replicas": "three"},
    }
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, VERSION, strict=True)
    worker["spec"] = DEPLOYMENTS["downpour-worker"] | {"replica": 3}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, VERSION, strict=True)


def test_the_image_has_the_user_of_the_pods_by_number_and_one_hash_seed() -> None:
    """A name would not tell Kubernetes that it is not root."""
    text = (FOLDER.parent / "Dockerfile").read_text()
    pods = [one["template"]["spec"]["securityContext"]["runAsUser"] for one in DEPLOYMENTS.values()]
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert {*pods} == {int(user)}
    assert f"useradd --uid {user} " in text
    assert " PYTHONHASHSEED=0 " in text


def test_all_pods_mount_the_one_shared_folder() -> None:
    """Manager, workers and KubeRay's pods, where their commands expect it."""
    (claim,) = documents("shared.yaml")
    (job,) = documents("kuberay/rayjob.yaml")
    ray = job["spec"]["rayClusterSpec"]
    templates = [one["template"] for one in DEPLOYMENTS.values()]
    templates += [ray["headGroupSpec"]["template"], ray["workerGroupSpecs"][0]["template"]]
    for template in templates:
        (volume,) = template["spec"]["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (one,) = template["spec"]["containers"]
        assert one["volumeMounts"] == [{"name": volume["name"], "mountPath": "/shared"}]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "--shared /shared" in job["spec"]["entrypoint"]


def test_a_worker_has_longer_to_leave_than_it_takes() -> None:
    """Kubernetes kills it after the grace period; a snapshot and a goodbye come after draining."""
    (drain,) = [word for word in container("downpour-worker")["args"] if "--drain" in word]
    grace = DEPLOYMENTS["downpour-worker"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= float(drain.partition("=")[2]) + 30


def test_there_is_never_a_second_manager_beside_the_first() -> None:
    """The old pod ends before the new one begins; should it not, the new one waits."""
    assert DEPLOYMENTS["downpour-manager"]["strategy"] == {"type": "Recreate"}
    assert DEPLOYMENTS["downpour-manager"]["replicas"] == 1
    assert "--successor" in container("downpour-manager")["args"]


def test_the_overlay_of_the_docs_fits_and_its_workers_say_where_they_are() -> None:
    """Each label of a node that pods are placed by is also one of the worker's."""
    text = DOCS.read_text().partition("# my-cluster/kustomization.yaml\n")[2]
    overlay = yaml.safe_load(text.partition("```")[0])
    (patch,) = [one["patch"] for one in overlay["patches"] if one["target"].get("name")]
    spec = deepcopy(DEPLOYMENTS["downpour-worker"])
    worker = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}}
    worker["spec"] = spec
    for one in yaml.safe_load(patch):
        add(worker, one["path"].split("/")[1:], one["value"])
    kubernetes_validate.validate(worker, VERSION, strict=True)
    pod = spec["template"]["spec"]
    labels = [word for word in pod["containers"][0]["args"] if word.startswith("--label=")]
    assert labels == [f"--label={key}={value}" for key, value in pod["nodeSelector"].items()]


def add(document: Any, path: list[str], value: Any) -> None:
    """Add to a document as JSON Patch does (RFC 6902)."""
    *way, last = path
    for step in way:
        document = document[int(step) if isinstance(document, list) else step]
    if isinstance(document, list):
        assert last == "-"
        document.append(value)
    else:
        document[last] = value


@dataclass(frozen=True, slots=True)
class Pods:
    """The processes of both containers, and the manager's variables."""

    processes: dict[str, subprocess.Popen[bytes]]
    variables: dict[str, str]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Start the commands of both containers, with this machine's folders and a port of its own."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = {"/shared": str(tmp_path / "shared"), "downpour-manager:9090": f"localhost:{port}"}
    here |= {"localhost:9090": f"localhost:{port}", "/tmp/ready": str(tmp_path / "ready")}  # noqa: S108
    (tmp_path / "shared").mkdir()
    started = {}
    try:
        for name in ("downpour-worker", "downpour-manager"):  # the worker may come first
            words = [translated(word, here) for word in container(name)["args"]]
            words += ["--port", str(port)] if name == "downpour-manager" else []
            started[name] = start(words, environment(name, here))
        yield Pods(started, environment("downpour-manager", here))
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def environment(name: str, here: dict[str, str]) -> dict[str, str]:
    """Return a container's variables; those that Kubernetes fills in have a value of the test's."""
    variables = container(name)["env"]
    return {one["name"]: translated(one.get("value", "pod-1"), here) for one in variables}


def translated(word: str, here: dict[str, str]) -> str:
    """Replace a container's paths and addresses by this machine's."""
    for there, replacement in {**here, "$(POD_NAME)": "pod-1", "0.0.0.0": "127.0.0.1"}.items():
        word = word.replace(there, replacement)
    return word


def start(words: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command of `downpour`."""
    return subprocess.Popen(
        [sys.executable, "-m", "downpour", *words],
        env={**os.environ, **variables},
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_the_commands_of_pods_find_each_other_and_end_when_told(pods: Pods, tmp_path: Path) -> None:
    """The worker's ready file appears, the manager's probe succeeds, and both leave at TERM."""
    assert container("downpour-worker")["readinessProbe"]["exec"]["command"][-1] == "/tmp/ready"  # noqa: S108
    ready = tmp_path / "ready"
    until(ready.exists, PATIENCE_SECONDS, every_seconds=0.05)
    probe = container("downpour-manager")["readinessProbe"]["exec"]["command"]
    assert probe[0] == "downpour"
    assert start(probe[1:], pods.variables).wait(PATIENCE_SECONDS) == 0
    for name in ("downpour-worker", "downpour-manager"):
        pods.processes[name].send_signal(signal.SIGTERM)
        assert pods.processes[name].wait(PATIENCE_SECONDS) == 0
    assert not ready.exists()
