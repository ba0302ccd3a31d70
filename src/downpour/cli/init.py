"""`downpour init`: writes a small project to start from."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from downpour.base.options import argument, option
from downpour.cli.parameters import command
from downpour.cli.printing import say
from downpour.cluster.operations.templates import NEEDED, TEMPLATES, write_template
from downpour.files.spec_file import specs_in
from downpour.host.extras import is_installed


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """The options of `downpour init`."""

    folder: Path | None = argument(
        "The folder to write to; created if it is missing.", "DIR", None, default="./TEMPLATE"
    )
    template: str = option("classifier", "The kind of project.", "|".join(TEMPLATES))


@command
def init(options: InitOptions) -> None:
    """Write a small project to start from.

    It holds a task, a spec and a README. The task trains right away on examples that it makes;
    replace them with yours. The command overwrites no files. It prints the commands that train the
    project and, if packages are missing, the one that installs them.
    """
    template = options.template
    folder = options.folder or Path(template)
    write_template(template, folder)
    if missing := [package for package in NEEDED.get(template, ()) if not is_installed(package)]:
        say(f"pip install {' '.join(missing)}")
    if folder.resolve() != Path.cwd():
        say(f"cd {shlex.quote(str(folder))}")
    say("downpour run" if len(specs_in(folder)) == 1 else "downpour run spec.toml")
