"""What Docker is asked for, and how its refusals are told: text, and a `docker` of the test's."""

import os
import subprocess
from pathlib import Path

import pytest

from downpour.base.errors import LaunchError
from downpour.cluster.launchers.compose import ComposeEngine, command, variables
from downpour.cluster.options import ManagerOptions
from downpour.host.paths import Credentials
from downpour.launchers import ComposeOptions, LaunchPlan

NONE = Credentials()
ROOT = Path(__file__).parents[3]
FILE = ComposeOptions(compose_file=str(ROOT / "docker/compose.yaml"))
GOLDEN = """\
docker compose -p downpour-1 -f compose.yaml run --rm -T --no-deps -e DOWNPOUR_MANAGER= \
-e DOWNPOUR_TOKEN_FILE= -e DOWNPOUR_TLS_CERT= -e DOWNPOUR_TLS_KEY= -e DOWNPOUR_TLS_CA= \
--entrypoint /bin/sh -c worker SCRIPT"""
DOCKER = """\
#!/bin/sh
echo "$@" >>"$0.asked"
case "$*" in
{refusal}
*"network ls"*) echo n1 ;;
*"network inspect"*) echo 10.1.0.1 ;;
*"image ls"*) echo 1234 ;;
esac
"""


def plan(shared: Path, credentials: Credentials = NONE) -> LaunchPlan:
    """Return a manager of one run, and two workers."""
    manager = ManagerOptions(shared=str(shared), port=0, embedded=True, credentials=credentials)
    return LaunchPlan(manager, 2)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a `docker` that `answering` makes; there is no other one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.delenv("DOWNPOUR_IMAGE", raising=False)
    return folder / "docker"


def answering(docker: Path, refusal: str = "") -> None:
    """Make a `docker` that answers well, but for what it refuses."""
    docker.write_text(DOCKER.format(refusal=refusal))
    docker.chmod(0o755)


def asked(docker: Path) -> list[str]:
    """Return what it was asked for, a line each."""
    return docker.with_suffix(".asked").read_text().splitlines()


def test_a_worker_is_a_container_that_goes_when_its_script_ends() -> None:
    """What the file tells the workers of its own manager is blank."""
    words = command(["docker", "compose", "-p", "downpour-1", "-f", "compose.yaml"], "SCRIPT")
    assert " ".join(words) == GOLDEN


def test_the_file_is_told_the_image_the_folder_and_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option goes before the environment, which goes before what is usual."""
    monkeypatch.setenv("DOWNPOUR_IMAGE", "mine")
    monkeypatch.setenv("DOWNPOUR_USER", "7:8")
    told = {"DOWNPOUR_SHARED": str(tmp_path), "DOWNPOUR_USER": "7:8"}
    assert variables(plan(tmp_path), FILE) == {"DOWNPOUR_IMAGE": "mine", **told}
    asked_for = ComposeOptions(image="lab")
    assert variables(plan(tmp_path), asked_for) == {"DOWNPOUR_IMAGE": "lab", **told}
    monkeypatch.delenv("DOWNPOUR_IMAGE")
    assert variables(plan(tmp_path), FILE)["DOWNPOUR_IMAGE"] == "downpour"


def test_a_dry_run_shows_the_commands(tmp_path: Path) -> None:
    """In a container the folder is /shared, and the port is the one of the file's health check."""
    text = ComposeEngine(FILE).planned(plan(tmp_path))
    assert text.count("# docker compose -p downpour-") == 2
    assert f"DOWNPOUR_SHARED={tmp_path}\n" in text
    assert "--manager ADDRESS:PORT --shared /shared --name worker-2 --port 9091 " in text


def test_docker_is_asked_before_anything_starts(docker: Path, tmp_path: Path) -> None:
    """The manager listens where the containers reach this machine; in the end all is removed."""
    answering(docker)
    engine = ComposeEngine(FILE)
    engine.check(plan(tmp_path))
    assert engine.manager_host == "10.1.0.1"
    engine.close()
    did = [line.partition("compose.yaml ")[2] for line in asked(docker)]
    assert [line for line in did if line] == [
        "up --no-start --no-deps --no-build worker",
        "down --volumes --remove-orphans --timeout 5",
    ]


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (
            "*image*) ;;",
            "the image downpour is missing: `docker build -f docker/Dockerfile -t downp",
        ),
        ("version*) echo 'no daemon answers' >&2; exit 1 ;;", "no daemon answers"),
        ("version*) exit 1 ;;", "is Docker running?"),
        (
            "*'compose version'*) exit 1 ;;",
            "`docker compose` and `docker-compose` are missing here",
        ),
        ("*' up '*) echo 'service \"worker\" is unknown' >&2; exit 1 ;;", "is unknown"),
        ("*'network ls'*) ;;", "has no gateway"),
    ],
)
def test_missing_parts_of_docker_are_named_in_one_line(
    docker: Path, tmp_path: Path, refusal: str, reason: str
) -> None:
    """The user can correct it, and nothing is left of the project."""
    answering(docker, refusal)
    (docker.parent / "docker-compose").symlink_to("/bin/false")
    with pytest.raises(LaunchError) as told:
        ComposeEngine(FILE).check(plan(tmp_path))
    assert reason in str(told.value)
    assert "\n" not in str(told.value)
    assert told.value.exit_status == 2
    made = [line for line in asked(docker) if " up " in line]
    assert len([line for line in asked(docker) if " down " in line]) == len(made)


def test_without_docker_a_line_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, whatever else is wrong."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="install Docker and its plugin compose"):
        ComposeEngine(FILE).check(plan(tmp_path))


def test_files_that_no_container_sees_are_refused(tmp_path: Path) -> None:
    """Only the shared directory is mounted."""
    theirs = Credentials(tls_ca="/etc/ca.pem")
    with pytest.raises(LaunchError, match=r"tls_ca = '/etc/ca.pem': must be in .*") as told:
        ComposeEngine(FILE).check(plan(tmp_path, theirs))
    assert told.value.exit_status == 2


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """The usual one lies in the repository, which may be elsewhere."""
    options = ComposeOptions(compose_file=str(tmp_path / "none.yaml"))
    with pytest.raises(LaunchError, match=r"compose_file = '.*none.yaml': no such file"):
        ComposeEngine(options).check(plan(tmp_path))


def test_the_last_will_is_carried_out_again_until_it_succeeds(tmp_path: Path) -> None:
    """`down` fails while another command removes one of the containers."""
    tried = tmp_path / "tried"
    _fake(tmp_path / "docker", f'echo "$@" >> {tried}; [ "$(wc -l < {tried})" -ge 3 ]')
    _fake(tmp_path / "sleep", "true")
    engine = ComposeEngine(ComposeOptions())
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", "-c", engine._will], check=True, env=environment)
    assert len(tried.read_text().splitlines()) == 3
    assert all(" down --volumes " in line for line in tried.read_text().splitlines())


def _fake(command: Path, script: str) -> None:
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
