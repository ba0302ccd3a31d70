"""Runs a manager and workers as systemd user services, which outlive a login and a reboot.

Units are text that follows from the plan alone. The workers are instances of one template.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers.base import LaunchPlan
from downpour.cluster.options import ONE_HASH_SEED, training_environment
from downpour.learning import allowlist

RUNNING = Path("/run/systemd/system")
"""It exists if systemd is the system's first process (sd_booted(3))."""
_WORKER_NUMBER = "%i"
_WORKER_NAME = f"%H-{_WORKER_NUMBER}"
"""The machine's name and the instance's, which systemd fills in."""
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_UNIT = """\
[Unit]
Description=Downpour {role} of {shared}
StartLimitIntervalSec=0

[Service]
{environment}ExecStart={command}
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=5
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""


def units(plan: LaunchPlan, *, with_manager: bool = True) -> dict[str, str]:
    """Return the text of each unit by its file's name."""
    if plan.manager.credentials.token and not plan.manager.credentials.token_file:
        raise SpecError("service", value=True, accepted="needs --token-file, not DOWNPOUR_TOKEN")
    manager = plan.reached_at(plan.manager.host).manager
    files = replace(manager.credentials, token="").to_environment()
    tag = _tag(manager.shared)
    worker = replace(plan.worker(1, ""), name=_WORKER_NAME, credentials=manager.credentials)
    common = {**ONE_HASH_SEED, **allowlist.environment(), **files}
    made = {}
    if with_manager:
        name = f"downpour-{tag}-manager.service"
        made[name] = _unit("manager", manager.shared, manager.arguments(), common)
    environment = {**training_environment(plan.threads), **common}
    name = f"downpour-{tag}-worker@.service"
    words = [*worker.arguments(), "--place", _WORKER_NUMBER]
    made[name] = _unit("worker", manager.shared, words, environment)
    return made


def enable(plan: LaunchPlan, texts: Mapping[str, str]) -> list[str]:
    """Write units, start them now and at each boot, with a token if needed; returns their names."""
    # Import it here: help texts import this module, and must not wait for numpy.
    from downpour.files.store import SharedDirectory
    from downpour.files.store.shared_directory import make_token

    _check_running()
    has_manager = any("-manager." in name for name in texts)
    SharedDirectory.open(Path(plan.manager.shared), create=has_manager)
    credentials = plan.reached_at(plan.manager.host).manager.credentials
    if credentials.token_file:
        make_token(Path(credentials.token_file))
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    names = [one for name in texts for one in _instances(name, range(1, plan.workers + 1))]
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", *names)
    return names


def disable(shared: str) -> list[str]:
    """Stop the units of a shared directory and remove them; returns their names."""
    _check_running()
    files = sorted(_folder().glob(f"downpour-{_tag(shared)}-*.service"))
    if not files:
        return []
    # Stop the workers first, so that they can unregister from their manager.
    names = [file.name.replace("@.", "@*.") for file in reversed(files)]
    _systemctl("stop", *names)
    _systemctl("disable", *(file.name for file in files))
    for file in files:
        file.unlink()
    _systemctl("daemon-reload")
    return names


def linger() -> bool:
    """Let this user's services run without a login; returns whether systemd allowed it."""
    words = ["loginctl", "enable-linger"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603


def _check_running() -> None:
    if not RUNNING.is_dir():
        reason = "systemd does not run here, so it cannot keep services; leave out --service"
        raise LaunchError(reason, asked_wrongly=True)


def _systemctl(*words: str) -> None:
    asked = ["systemctl", "--user", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise LaunchError(f"systemctl --user {words[0]}: {reason}", asked_wrongly=True)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd" / "user"


def _instances(name: str, numbers: Sequence[int]) -> list[str]:
    """Return the units of a template, or the single unit of any other file."""
    return [name.replace("@.", f"@{number}.") for number in numbers] if "@." in name else [name]


def _tag(shared: str) -> str:
    """Return a tag that tells the units of one shared directory from those of another."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", shared)[-32:].strip("-").lower()
    return f"{readable}-{hashlib.sha256(shared.encode()).hexdigest()[:6]}"


def _unit(role: str, shared: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "downpour.cli", *words]
    lines = [f"Environment={_word(f'{name}={value}')}\n" for name, value in environment.items()]
    return _UNIT.format(
        role=role,
        shared=shared.replace("%", "%%"),
        environment="".join(lines),
        command=" ".join(_word(word).replace("$", "$$") for word in command),
    )


def _word(word: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7)); only our own words have specifiers."""
    text = word if word in {_WORKER_NAME, _WORKER_NUMBER} else word.replace("%", "%%")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
