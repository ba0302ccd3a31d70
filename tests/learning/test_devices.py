"""Which devices a machine has, with and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from downpour.base.names import Devices
from downpour.learning import accelerators, auto
from downpour.learning.accelerators import card_of, devices_here, in_use, release, seeded


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
