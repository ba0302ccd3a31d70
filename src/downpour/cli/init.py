"""`downpour init`: writes a small project to start from: a task, its spec, and a README."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from downpour.base.errors import SpecError, did_you_mean, is_installed
from downpour.base.options import argument, option
from downpour.cli.parameters import command
from downpour.cli.printing import say
from downpour.files.spec_file import specs_in

TEMPLATES = {
    "classifier": "Tells two spirals apart.",
    "regression": "Predicts a number from a table.",
    "language-model": "Trains a small GPT on letters.",
    "lora": "Fine-tunes GPT-2 with LoRA.",
    "own-step": "Trains a GAN: two optimizers, and a custom step.",
}
"""Each template, in a sentence."""

NEEDED = {"lora": ("transformers", "peft")}
"""Packages that a template imports and Downpour does not install."""

_README = """\
# {name}

    downpour run

trains it on this machine{needs}. `{module}.py` is the task, `spec.toml`
has the settings; change both as you like. The run prints the ID of its model, which other
commands take:

    downpour evaluate ID --allow {module}
    downpour export ID --to model --allow {module}
    downpour run --resume ID --epochs 20 --allow {module}

To train on other machines, start the manager here with `DOWNPOUR_ALLOW={module} DOWNPOUR_CODE=` and
the path of this folder, and workers there with `DOWNPOUR_ALLOW={module}` and `--accept-code`: they
get `{module}.py` with the experiment. Then use `downpour submit spec.toml`.
"""


def write_template(name: str, folder: Path) -> None:
    """Write a template's files into a folder; create the folder if needed."""
    if name not in TEMPLATES:
        accepted = f"must be {', '.join(TEMPLATES)}"
        raise SpecError("template", name, accepted + did_you_mean(name, TEMPLATES))
    module = name.replace("-", "_")
    needed = " and ".join(NEEDED.get(name, ()))
    needs = f" once {needed} are installed" if needed else ""
    origin = files("downpour.cli") / "templates" / name
    texts = {
        f"{module}.py": (origin / f"{module}.py.txt").read_text(encoding="utf-8"),
        "spec.toml": (origin / "spec.toml").read_text(encoding="utf-8"),
        "README.md": _README.format(name=name, module=module, needs=needs),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(file for file in texts if (folder / file).exists())
        if there:
            never = "and this command never overwrites files; choose another folder"
            raise SpecError("DIR", str(folder), f"already has {there[0]}, {never}")
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError("DIR", str(folder), f"cannot be written: {error.strerror}") from None


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
