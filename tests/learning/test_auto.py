"""What `auto` becomes: devices with and without torch, a task's optimizer, and processes."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import downpour
from downpour.base.errors import DownpourError, LaunchError, SpecError
from downpour.base.names import Devices
from downpour.core.resolve import LocalOptimizer, resolve
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.store import SharedDirectory
from downpour.learning import accelerators, auto
from downpour.learning.accelerators import card_of, devices_here, in_use, release, seeded
from downpour.learning.auto import (
    Candidate,
    Measured,
    candidates,
    chosen_of,
    look,
    settled,
    trainer_of,
)
from tests.conftest import Allow
from tests.learning.intra_worker.conftest import ROOT
from tests.learning.tasks.conftest import lab


@pytest.mark.parametrize(
    ("build", "file", "may"),
    [
        ("cu128", "nvidia0", True),
        ("", "nvidia12", True),
        ("rocm6.4", "kfd", True),
        ("xpu", "dri/renderD128", True),
        ("cu128", "dri/renderD128", False),
        ("cu128", "nvidia-uvm", False),
        ("cpu", "nvidia0", False),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems show no such files")
def test_files_of_a_driver_are_signs_of_an_accelerator(
    tmp_path: Path, build: str, file: str, *, may: bool
) -> None:
    """Unless the installed torch is built for the processor alone."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    assert auto._may_have_any(build, tmp_path) is may


def test_torch_is_asked_only_if_it_may_find_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """But always where the user names an accelerator, to say what there is instead."""
    monkeypatch.setattr(accelerators, "devices_here", lambda: Devices({"cuda": 2}))
    monkeypatch.setattr(auto, "_may_have_any", lambda *_: False)
    assert not auto.devices_for("auto").accelerators
    assert auto.devices_for("cuda").cards("cuda") == 2
    monkeypatch.setattr(auto, "_may_have_any", lambda *_: True)
    assert auto.devices_for("auto").cards("auto") == 2
    assert not auto.devices_for("cpu").accelerators


def test_a_machine_without_signs_does_not_wait_for_torch() -> None:
    """A command line that starts workers stays fast."""
    code = (
        "import sys; from downpour.learning import auto;"
        "auto._may_have_any = lambda *_: False; auto.devices_for('auto');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_this_machine_has_what_torch_finds() -> None:
    """The best of it is what torch calls the accelerator."""
    here = devices_here()
    found = torch.accelerator.current_accelerator(check_available=True)
    assert here.best == (found.type if found is not None else "cpu")
    assert here.has("cuda") == torch.cuda.is_available()


def test_a_device_without_a_number_is_what_torch_has_in_use() -> None:
    """So nothing is changed, and a machine without it is not asked."""
    for device in ("cpu", "cuda", "mps", "xpu"):
        with in_use(device):
            pass
    assert card_of("cpu") == []


@pytest.mark.skipif(not devices_here().accelerators, reason="this machine has no accelerator")
def test_an_accelerators_draws_follow_the_seed() -> None:
    """As those of the CPU do."""
    drawn = []
    for _ in range(2):
        with seeded(7):
            drawn.append(torch.rand(3, device=devices_here().best).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc gives back what lies in between")
def test_memory_between_what_is_in_use_is_given_back() -> None:
    """As after a trial, whose networks are gone, but not what came after them."""
    blocks = [bytearray(100_000) for _ in range(1000)]
    del blocks[:-1]
    before = psutil.Process().memory_info().rss
    release("cpu")
    assert psutil.Process().memory_info().rss < before - 50_000_000


__all__ = ["lab"]


def look_at(asked: dict[str, Any]) -> str:
    """Look as another process would; the launcher tells of one that fails."""
    try:
        return look(asked)
    except DownpourError as error:
        raise LaunchError(str(error)) from error


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(
    ("task", "fields", "momentum"),
    [
        ("own_tasks:Plane", {"momentum": 0.7}, 0.7),
        ("own_tasks:Plane", {"optimizer": "adamw"}, None),
        ("own_tasks:Grouped", {}, None),
        ("optimizer_tasks:Lookahead", {"optimizer": "adamw"}, 0.0),
        ("optimizer_tasks:SparseWords", {"task_options": {"kind": "SparseAdam"}}, None),
        ("own_tasks:Unmade", {}, None),
    ],
)
def test_the_optimizer_of_a_task_is_seen(
    task: str, fields: dict[str, Any], momentum: float | None
) -> None:
    """A form of sgd has a momentum; of a task that fails, preparation tells the cause."""
    spec = Spec.make({"task": task, "meet": "auto", **fields})
    seen = LocalOptimizer(momentum=momentum)
    assert trainer_of(spec, 4, apart=False) == trainer_of(spec, 4, ask=look_at) == seen


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_a_separate_process_sees_the_same() -> None:
    """Of a task that fails it sees nothing, and a look that takes too long is refused."""
    spec = Spec.make({"task": "own_tasks:Plane", "meet": "auto", "momentum": 0.7})
    assert trainer_of(spec, 4) == LocalOptimizer(momentum=0.7)
    gone = spec.replace(task="own_tasks:Unmade")
    assert trainer_of(gone, 4) == LocalOptimizer(momentum=None)
    with pytest.raises(SpecError, match="the optimizer of own_tasks:Plane could not be seen"):
        trainer_of(spec, 4, patience_seconds=0.01)


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "digits"},
        {"task": "gone:Gone", "shards": 1},
        {"task": "gone:Gone", "optimizer_state": "keep", "outer": "none"},
    ],
)
def test_nobody_looks_where_nothing_depends_on_it(fields: dict[str, Any]) -> None:
    """With one shard, without a task, or if the spec says it all."""
    assert trainer_of(Spec.make(fields), 4) is None


def test_nobody_looks_again_at_a_resolved_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowing: Allow
) -> None:
    """Its file says everything that a Trainer might."""
    (tmp_path / "lab.py").write_text("import transformers\n", "utf-8")
    allowing(tmp_path, "lab")
    found = LocalOptimizer(momentum=None, settings={"batch_size": 7})
    monkeypatch.setattr(auto, "_found", lambda _: found)
    asked = Spec.make({"task": "lab:trainer", "shards": 1, "epochs": 5})
    said = trainer_of(asked, 1, apart=False)
    resolved = resolve(asked, 1, said)
    assert (resolved.batch_size, resolved.epochs) == (7, 5)
    assert trainer_of(Spec.from_toml(resolved.to_toml()), 1, apart=False) is None


LOUD = "tests.learning.intra_worker.conftest:loud_network"
AUTO = {"inside": "auto", "dataset": "digits", "batch_size": 32}


def timed(name: Candidate, ratio: float) -> Measured:
    """A candidate that is so many times as fast."""
    return Measured(candidate=name, step_seconds=0.01, times_as_fast=ratio)


def test_auto_is_a_word_or_a_table() -> None:
    """Both are the same spec, and its TOML is read back as it is."""
    spec = Spec.make(AUTO)
    assert spec == Spec.make({**AUTO, "inside": {"how": "auto"}})
    assert Spec.from_toml(spec.to_toml()) == spec


def test_cores_are_what_processes_and_threads_take() -> None:
    """All are used, or none; the threads that a spec asks for are each process's."""
    assert candidates(Spec.make(AUTO), 1) == [Candidate()]
    assert candidates(Spec.make({**AUTO, "threads": 2}), 3) == [Candidate(threads=2)]
    found = candidates(Spec.make({**AUTO, "threads": 2}), 8)
    assert found[:2] == [Candidate(threads=2), Candidate(threads=8)]
    assert {(one.threads, one.processes) for one in found[2:]} == {(2, 4)}
    assert {one.how for one in found[2:]} == {"data", "hybrid", "pipeline"}


def test_one_process_is_left_for_a_clear_gain_alone() -> None:
    """A tenth is what noise may be; the fastest of several is taken, and what cannot be is not."""
    alone, threads, helpers = Candidate(), Candidate(threads=2), Candidate(processes=2)
    refused = Measured(candidate=Candidate(processes=2, how="hybrid"), refused="no dense layer")
    nearly = [timed(alone, 1.0), timed(threads, 1.09), refused]
    assert chosen_of(nearly).candidate == alone
    assert chosen_of([*nearly, timed(helpers, 1.5), timed(threads, 1.3)]).candidate == helpers


def test_workers_without_a_core_to_spare_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several on one machine share its cores; then nothing is started, and the caller is told."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    told: list[str] = []
    spec = settled(Spec.make(AUTO), 3, tmp_path, tell=told.append)
    assert (spec.threads, spec.inside.processes, spec.inside.how) == (1, 1, "data")
    assert told == ["inside: one process, because 3 workers share 4 cores"]


def test_only_a_run_on_this_machine_can_measure() -> None:
    """Elsewhere there may be other cores; the refusal says what to write instead."""
    with pytest.raises(SpecError, match=r"inside\.how = 'auto': only a run on this machine"):
        resolve(Spec.make(AUTO), 2)
    with pytest.raises(SpecError, match=r"set processes and how"):
        downpour.run(AUTO, workers=2, on="ray")
    with pytest.raises(SpecError, match=r"inside\.processes = 2: has no effect with how = 'auto'"):
        Spec.make({**AUTO, "inside": {"how": "auto", "processes": 2}})


@pytest.mark.slow
def test_a_training_that_is_refused_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is that of a submission, with its field."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    spec = Spec.make({**AUTO, "dataset": "npz", "data_path": str(tmp_path / "none.npz")})
    with pytest.raises(SpecError, match=r"^data_path = .*none\.npz"):
        settled(spec, 1, tmp_path)


@pytest.mark.slow
def test_a_run_measures_and_trains_with_what_it_has_chosen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    allowing: Allow,
) -> None:
    """Each candidate is measured or refused, and a network that prints disturbs nothing."""
    allowing(ROOT, "tests.learning.intra_worker.conftest")
    caplog.set_level(logging.INFO, "downpour")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    result = downpour.run(
        {**AUTO, "model": LOUD, "epochs": 1}, workers=1, shared=tmp_path, progress=False
    )
    *measured, chosen = [one.message for one in caplog.records if "inside: " in one.message]
    assert len(measured) == 5
    assert all("ms a step" in line or "not possible" in line for line in measured)
    folder = SharedDirectory(tmp_path).experiment_path(result.experiment)
    trained = ResolvedSpec.from_toml((folder / "spec.toml").read_text("utf-8"))
    assert trained.inside.how != "auto"
    name = Candidate(
        threads=trained.threads, processes=trained.inside.processes, how=trained.inside.how
    )
    assert chosen.startswith(f"inside: chose {name}")
