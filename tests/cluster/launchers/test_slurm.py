"""What Slurm is asked for, and how its answers are read: text, without a cluster."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers.slurm import SlurmEngine
from downpour.cluster.launchers.slurm_script import ArrayTask, overriding, parse, script, seconds_of
from downpour.cluster.options import ManagerOptions, WorkerOptions
from downpour.host.paths import Credentials
from downpour.launchers import LaunchPlan, SlurmOptions

WORKER = WorkerOptions(
    shared="/lab/100% mine",
    manager="10.0.0.1:4000",
    name="worker-1",
    credentials=Credentials(token="secret", token_file="/lab/100% mine/token"),
)
GOLDEN = """\
#!/bin/sh
#SBATCH --job-name=downpour
#SBATCH --comment=downpour-1a2b
#SBATCH --array=1-3
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH '--output=/lab/100%% mine/logs/slurm-%A_%a.out'
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --time=1-12:00:00
#SBATCH --gres=gpu:1
#SBATCH --mem=4G
#SBATCH '--constraint=a100&nvlink'
export OMP_NUM_THREADS=2
exec /venv/bin/python -m downpour worker --manager 10.0.0.1:4000 \
--shared '/lab/100% mine' --drain-seconds 20.0 \
--name "worker-$SLURM_ARRAY_TASK_ID" --place "$SLURM_ARRAY_TASK_ID"
"""
OPTIONS = SlurmOptions(
    partition="gpu",
    account="physics",
    time="1-12:00:00",
    gres="gpu:1",
    sbatch=("--mem=4G", "--constraint=a100&nvlink"),
    signal="USR1@90",
    drain_seconds=20.0,
)


def workers(*numbers: int) -> list[WorkerOptions]:
    """Return workers that differ in their names."""
    return [replace(WORKER, name=f"worker-{number}") for number in numbers]


def test_a_script_is_text_made_of_options_alone() -> None:
    """Whatever Slurm or the shell would expand is quoted."""
    given = {"OMP_NUM_THREADS": "2"}
    assert script(workers(1, 2, 3), OPTIONS, given, "downpour-1a2b", "/venv/bin/python") == GOLDEN


def test_a_worker_that_is_added_is_an_array_of_its_own_number() -> None:
    """Indices are the workers' numbers; these need not follow one another."""
    assert "#SBATCH --array=7\n" in script(workers(7), SlurmOptions(), {}, "r")
    assert "#SBATCH --array=2,5\n" in script(workers(5, 2), SlurmOptions(), {}, "r")


def test_nodes_are_asked_for_by_features_and_workers_say_so() -> None:
    """All features at once, among the options of sbatch; what the environment says is left out."""
    options = SlurmOptions(place=("gpu=a40", "site=b"))
    named = [replace(WORKER, labels=("rack=3", "site=a"))]
    text = script(named, options, {}, "r")
    assert "#SBATCH '--constraint=a40&b'\n" in text
    assert "--label rack=3 --label site=b --label gpu=a40 --name" in text
    assert "SBATCH_CONSTRAINT" in overriding(text)
    assert "constraint" not in script(named, SlurmOptions(), {}, "r")


def test_a_token_is_in_no_script() -> None:
    """Slurm keeps scripts, and shows them; the token's file is named."""
    text = SlurmEngine(SlurmOptions(manager_host="10.0.0.1")).script(workers(1), {})
    assert "secret" not in text
    assert "export DOWNPOUR_TOKEN_FILE='/lab/100% mine/token'\n" in text


def test_a_dry_run_shows_the_address_and_the_token_of_the_run(tmp_path: Path) -> None:
    """Only the port is not known before the manager runs."""
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), embedded=True), 2, threads=3)
    text = SlurmEngine(SlurmOptions(manager_host="10.0.0.1")).planned(plan)
    assert "--array=1-2\n" in text
    assert "--cpus-per-task=3\n" in text
    assert " --manager 10.0.0.1:PORT " in text
    assert f"DOWNPOUR_TOKEN_FILE={tmp_path}/token\n" in text
    assert not list(tmp_path.iterdir())


def test_the_environment_does_not_override_the_script() -> None:
    """Variables such as SBATCH_PARTITION win over a script, so those that it sets are left out."""
    named = overriding(GOLDEN)
    assert {"SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_ARRAY_INX", "SBATCH_OUTPUT"} <= named
    assert "SBATCH_PARTITION" not in overriding(script(workers(1), SlurmOptions(), {}, "r"))


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:00", 3600),
        ("2-0", 172800),
        ("1-2:30", 95400),
        ("1-2:30:05", 95405),
    ],
)
def test_time_limits_are_read_as_sbatch_does(time: str, seconds: int) -> None:
    """Its forms are minutes first, unless there are days."""
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partition", "--wrap=x"),
        ("partition", "a\nb"),
        ("account", "-A"),
        ("time", "soon"),
        ("time", "3"),
        ("gres", "\x1b"),
        ("signal", "KILL@10"),
        ("signal", "USR2"),
        ("sbatch", ("mem=4G",)),
        ("sbatch", ("--mem=4G\n#SBATCH --wrap=x",)),
        ("sbatch", ("--array=1-9",)),
        ("sbatch", ("--requeue",)),
        ("place", ("gpu",)),
        ("place", ("gpu=a40&b",)),
        ("place", ("gpu=",)),
    ],
)
def test_invalid_options_are_refused(field: str, value: object) -> None:
    """The line names the option and what is accepted."""
    with pytest.raises(SpecError, match=f"^{field} = "):
        SlurmOptions(**{field: value})  # type: ignore[arg-type]


def listed(*cells: str) -> str:
    """Return a line of squeue."""
    widths = (24, 12, 24, 12, 40, 80)
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + "\n"


def test_the_output_of_squeue_is_read_by_columns() -> None:
    """Reasons hold blanks, exit codes have two forms, and what is no task is left out."""
    said = (
        listed("12", "1", "RUNNING", "0", "None", "downpour-1a2b")
        + listed("12", "2", "FAILED", "19200", "NonZeroExitCode", "downpour-1a2b")
        + listed("12", "3", "FAILED", "2:0", "(Nodes are down, or so)", "(null)")
        + listed("12", "4", "FAILED", "0:9", "None", "")
        + listed("12", "5", "FAILED", "9", "None", "")
        + listed("13", "N/A", "RUNNING", "0", "None", "")
        + "\nslurm_load_jobs: something else\n"
    )
    assert parse(said) == [
        ArrayTask(12, 1, "RUNNING", 0, "None", "downpour-1a2b"),
        ArrayTask(12, 2, "FAILED", 75, "NonZeroExitCode", "downpour-1a2b"),
        ArrayTask(12, 3, "FAILED", 2, "(Nodes are down, or so)", "(null)"),
        ArrayTask(12, 4, "FAILED", None, "None", ""),
        ArrayTask(12, 5, "FAILED", None, "None", ""),
    ]


class Cluster:
    """Takes the place of Slurm's programs: small scripts that say what a test lets them say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for program, said in (("sbatch", "41"), ("squeue", ""), ("scancel", "")):
            self.answers(program, said)
            path = folder / program
            path.write_text(
                f'#!/bin/sh\necho "$@" >> {path}.called\n'
                f"read status < {path}.status\n"
                f"cat {path}.says >&$((status ? 2 : 1))\nexit $status\n"
            )
            path.chmod(0o755)

    def answers(self, program: str, said: str, status: int = 0) -> None:
        """Let a program, which cannot be written while it starts, say this and note its words."""
        (self.folder / f"{program}.says").write_text(said)
        (self.folder / f"{program}.status").write_text(f"{status}\n")

    def called(self, program: str) -> list[str]:
        file = self.folder / f"{program}.called"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return Cluster(folder)


def started(tmp_path: Path, number: int = 2) -> SlurmEngine:
    """Return an engine that has submitted workers."""
    clock = iter(range(0, 10**6, 30))
    engine = SlurmEngine(SlurmOptions(), lambda: float(next(clock)))
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), embedded=True), number)
    engine.check(plan)
    for n in range(1, number + 1):
        engine.start(plan.worker(n, "10.0.0.1:4000"), {}, tmp_path / "logs" / "log")
    return engine


def ends(engine: SlurmEngine, number: int = 1) -> dict[str, tuple[int | None, str]]:
    """Look until so many workers have ended."""
    found: dict[str, tuple[int | None, str]] = {}
    while len(found) < number:
        found |= {name: (end.status, end.reason) for name, end in engine.ended().items()}
    return found


def test_the_first_workers_are_one_array(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm is asked whether it takes them, and then once."""
    started(tmp_path, 3)
    assert cluster.called("sbatch") == ["--test-only", "--parsable"]


def test_a_refusal_is_told_in_slurms_own_words(cluster: Cluster, tmp_path: Path) -> None:
    """In one line, and with exit status 2; a controller that does not answer is not your fault."""
    said = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job failed\n"
    cluster.answers("sbatch", said, status=1)
    with pytest.raises(LaunchError) as told:
        started(tmp_path)
    assert str(told.value) == "sbatch: invalid partition specified: x; Batch job failed"
    assert told.value.exit_status == 2
    cluster.answers("sbatch", "sbatch: error: Unable to contact slurm controller\n", status=1)
    with pytest.raises(LaunchError, match="Unable to contact slurm controller") as told:
        started(tmp_path)
    assert told.value.exit_status == 1


def test_a_machine_without_slurm_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=r"on = 'slurm': sbatch is missing here"):
        started(tmp_path)


def test_a_machine_outside_the_cluster_is_told_so(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's commands alone say several lines about DNS; the user gets one of ours."""
    said = (
        "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "sbatch: error: fetch_config: DNS SRV lookup failed\n"
        "sbatch: error: _establish_config_source: failed to fetch config\n"
        "sbatch: fatal: Could not establish a configuration source\n"
    )
    cluster.answers("sbatch", said, status=1)
    with pytest.raises(SpecError, match=r"on = 'slurm': sbatch finds no cluster") as told:
        started(tmp_path)
    assert "nsearch" not in str(told.value)


@pytest.mark.parametrize(
    ("state", "code", "reason", "status"),
    [
        ("COMPLETED", "0", "None", 75),  # at its time limit: the next one goes on
        ("CANCELLED", "0", "None", 0),  # a person has removed it
        ("FAILED", "512", "NonZeroExitCode", 2),
        ("FAILED", "9", "None", None),
        ("NODE_FAIL", "0", "NodeDown", None),
        ("PENDING", "0", "PartitionTimeLimit", 2),
    ],
)
def test_how_a_worker_has_ended(
    state: str, code: str, reason: str, status: int | None, cluster: Cluster, tmp_path: Path
) -> None:
    """What follows from it is the cluster's business: restart, leave it, or give up."""
    engine = started(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "slurm-41_1.out").write_text("x\ndownpour: the folder is gone\n")
    said = [("1", state, code, reason), ("2", "RUNNING", "0", "None")]
    cluster.answers("squeue", "".join(listed("41", *cells, engine.run) for cells in said))
    found = ends(engine)
    assert found["worker-1"][0] == status
    assert set(found) == {"worker-1"}
    if code == "512":
        assert found["worker-1"][1] == "the folder is gone"
    assert cluster.called("scancel") == (["--quiet 41_1"] if state == "PENDING" else [])


def test_a_task_that_slurm_has_forgotten_has_ended(cluster: Cluster, tmp_path: Path) -> None:
    """A controller that does not answer has forgotten nothing: it is asked again."""
    engine = started(tmp_path)
    cluster.answers("squeue", "slurm_load_jobs error: Unable to contact slurm controller", status=1)
    for _ in range(50):
        assert engine.ended() == {}
    cluster.answers("squeue", "")
    assert {status for status, _ in ends(engine, 2).values()} == {None}


def test_jobs_of_others_are_never_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    """IDs are used again: only what has the run's own comment is."""
    engine = started(tmp_path)
    other = listed("41", "1", "RUNNING", "0", "None", "downpour-anothers")
    cluster.answers("squeue", other)
    engine.stop("worker-1")
    engine.close()
    assert cluster.called("scancel") == []
    engine = started(tmp_path)
    cluster.answers("squeue", listed("41", "1", "RUNNING", "0", "None", engine.run) + other)
    engine.stop("worker-1")
    assert cluster.called("scancel") == ["--quiet 41_1"]
    with pytest.raises(
        LaunchError, match=r"some jobs may still run \(41_1 is RUNNING\); stop them with scancel 41"
    ):
        engine.close()
    assert cluster.called("scancel")[1:] == ["--quiet 41"]


def test_the_script_is_one_that_a_shell_reads() -> None:
    """The golden text is no less a program."""
    subprocess.run(["sh", "-n"], input=GOLDEN, text=True, check=True)
