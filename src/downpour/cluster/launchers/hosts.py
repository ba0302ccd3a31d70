"""Reads a file of hosts: one per line, with names that `ssh` accepts.

::

    # HOST    what differs from this machine
    n1        slots=2
    anna@n2   python=/opt/downpour/bin/python  shared=/mnt/lab/shared
    n3        env=CUDA_VISIBLE_DEVICES=1  label=gpu=a40  label=site=b

OpenSSH handles ports, keys, users and jump hosts; set them in `~/.ssh/config`.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass

from downpour.base.errors import SpecError
from downpour.base.values import checked_labels, small_number
from downpour.host.paths import read_user_file

SLOTS_MAX = 1000
_HOST = re.compile(r"[A-Za-z0-9_@.:%\[\]][A-Za-z0-9_@.:%\[\]-]*")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SETTINGS = "slots=, python=, shared=, env= or label="


@dataclass(frozen=True, slots=True)
class Host:
    """A machine on which `slots` workers may run, with their settings there.

    `python` is the interpreter that has downpour; `shared` is the shared directory's path there,
    empty if it is the same; `environment` holds further variables. Workers on it have `labels`,
    each as KEY=VALUE.
    """

    name: str
    slots: int = 1
    python: str = sys.executable
    shared: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()


def read_hosts(path: str) -> tuple[Host, ...]:
    """Read a file of hosts."""
    try:
        text = read_user_file(path).decode()
    except OSError as error:
        accepted = f"must be a file with one host per line ({error.strerror})"
        raise SpecError("hosts", path, accepted) from None
    except UnicodeDecodeError:
        raise SpecError("hosts", path, "must be text, in UTF-8") from None
    return parse_hosts(text, path)


def parse_hosts(text: str, path: str) -> tuple[Host, ...]:
    """Return the hosts of a file's text; `path` is for errors."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            _add(hosts, shlex.split(line, comments=True))
        except (ValueError, SpecError) as error:
            raise SpecError("hosts", f"{path}, line {number}", str(error)) from None
    if not hosts:
        raise SpecError("hosts", path, "must name a host")
    return tuple(hosts.values())


def _add(hosts: dict[str, Host], words: list[str]) -> None:
    """Add the host of a line, unless the line is empty."""
    if not words:
        return
    host = _host(words)
    if host.name in hosts:
        raise ValueError(f"{host.name} appears twice; give it slots instead")
    hosts[host.name] = host


def _host(words: list[str]) -> Host:
    name, *settings = words
    # A name that begins with a dash would be an option of ssh, and could run any command.
    if not _HOST.fullmatch(name):
        raise ValueError(f"{name!r} must be a host that ssh accepts")
    values: dict[str, str] = {}
    environment: dict[str, str] = {}
    labels: list[str] = []
    for word in settings:
        key, sign, value = word.partition("=")
        if not sign or key not in {"slots", "python", "shared", "env", "label"}:
            raise ValueError(f"{word!r} must be {_SETTINGS}")
        if key == "env":
            match = _VARIABLE.fullmatch(value)
            if match is None:
                raise ValueError(f"env = {value!r} must be NAME=VALUE")
            environment[match[1]] = match[2]
        elif key == "label":
            labels.append(value)
        elif key in values:
            raise ValueError(f"{key}= appears twice")
        else:
            values[key] = value
    for key in ("python", "shared"):
        if key in values and not values[key].startswith("/"):
            raise ValueError(f"{key} = {values[key]!r} must be an absolute path")
    slots = _slots(values.pop("slots", "1"))
    variables = tuple(environment.items())
    return Host(name, slots, environment=variables, labels=checked_labels(labels), **values)


def _slots(text: str) -> int:
    slots = small_number(text)
    if slots is None or not 1 <= slots <= SLOTS_MAX:
        raise ValueError(f"slots = {text[:80]!r} must be a whole number from 1 to {SLOTS_MAX}")
    return slots
