"""Which devices a machine has, without torch where there can be no accelerator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from downpour.base.devices import Devices
from downpour.learning import accelerators, devices


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
    assert devices._may_have_any(build, tmp_path) is may


def test_torch_is_asked_only_if_it_may_find_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """But always where the user names an accelerator, to say what there is instead."""
    monkeypatch.setattr(accelerators, "devices_here", lambda: Devices({"cuda": 2}))
    monkeypatch.setattr(devices, "_may_have_any", lambda *_: False)
    assert not devices.devices_for("auto").accelerators
    assert devices.devices_for("cuda").cards("cuda") == 2
    monkeypatch.setattr(devices, "_may_have_any", lambda *_: True)
    assert devices.devices_for("auto").cards("auto") == 2
    assert not devices.devices_for("cpu").accelerators


def test_a_machine_without_signs_does_not_wait_for_torch() -> None:
    """A command line that starts workers stays fast."""
    code = (
        "import sys; from downpour.learning import devices;"
        "devices._may_have_any = lambda *_: False; devices.devices_for('auto');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
