"""The commands for first steps: init, which writes a small project, and demo."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base.errors import MissingPackage, SpecError, did_you_mean, is_installed, require
from downpour.base.options import argument, option
from downpour.cli import common
from downpour.cli.common import RESULTS, SHARED, command
from downpour.cli.printing import err, note, out, say
from downpour.cli.showing import check_figure, figure_option, write_figure
from downpour.files.spec_file import specs_in
from downpour.host.paths import read_user_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from downpour.experiments.demos import Acted, Demo


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
    _write(texts, folder)


def _write(texts: Mapping[str, str], folder: Path) -> None:
    """Write files that must not exist yet."""
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
class _InitOptions:
    folder: Path | None = argument(
        "The folder to write to; created if it is missing.",
        "DIR",
        None,
        default="./TEMPLATE, or that of the script",
    )
    template: str = option("", "The kind of project.", "|".join(TEMPLATES), default="classifier")
    script: Path | None = option(
        None, "Write the task and the spec of this PyTorch script.", "FILE.py", flag="--from"
    )


@command
def init(options: _InitOptions) -> None:
    """Write a small project to start from.

    It holds a task, a spec and a README. The task trains right away on examples that it makes;
    replace them with yours. The command overwrites no files. It prints the commands that train the
    project and, if packages are missing, the one that installs them.

    With `--from`, it writes the task and the spec of your own script instead, which it reads but
    never runs. It prints a checklist: the lines of the script that it left out, and those marked
    as your part.
    """
    template = options.template or "classifier"
    if options.script is not None:
        if options.template:
            accepted = "--from brings its own task; leave out --template"
            raise SpecError("template", template, accepted)
        _init_from(options.script, options.folder or options.script.parent)
        return
    folder = options.folder or Path(template)
    write_template(template, folder)
    if missing := [package for package in NEEDED.get(template, ()) if not is_installed(package)]:
        say(f"pip install {' '.join(missing)}")
    _say_next(folder, "downpour run" if len(specs_in(folder)) == 1 else "downpour run spec.toml")


def _init_from(script: Path, folder: Path) -> None:
    """Write a script's task and spec, and print what to know about them."""
    from downpour.learning.tasks.ported import Conversion

    try:
        source = read_user_file(script).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError("from", str(script), f"must be a Python script ({reason})") from None
    found = Conversion(source, script)
    _write({f"{found.name}.py": found.code, f"{found.name}.toml": found.spec}, folder)
    for line in found.checklist:
        say(line)
    _say_next(folder, f"downpour run {found.name}.toml")


def _say_next(folder: Path, command: str) -> None:
    if folder.resolve() != Path.cwd():
        say(f"cd {shlex.quote(str(folder))}")
    say(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DemoOptions:
    name: str = argument(
        "The demo to show; leave it out to list them.",
        "stragglers|splits|crash|asynchrony",
        "",
        default=False,
    )
    to: Path | None = figure_option("Draw the figure", "./results/demo-NAME.png")
    shared: Path = common.shared()
    epochs: int | None = option(None, "Train for this many epochs.", "N", default="the demo's")


@command
def demo(options: _DemoOptions) -> None:
    """Show what Downpour does, in about a minute.

    A demo trains a small network twice on this machine: two policies, two splits, with a crash and
    without, with a barrier and without. Then it prints a table of both runs, a sentence on the
    lesson, the path of a figure, and the command lines that repeat the runs. All numbers are
    measured.

    A demo downloads nothing. It trains on scikit-learn's digits, or on synthetic data if that
    package is missing.
    """
    from downpour.experiments.demos import DEMOS

    name = options.name
    if not name:
        for name, lesson in DEMOS.items():
            say(f"{name:<12}{lesson.about}")
        return
    if name not in DEMOS:
        *others, last = DEMOS
        accepted = f"must be {', '.join(others)} or {last}{did_you_mean(name, DEMOS)}"
        raise SpecError("demo", name, accepted)
    check_figure("to", options.to)
    fewer = {} if options.epochs is None else {"epochs": options.epochs}
    for act in DEMOS[name].acts:
        act.check(fewer)
    _play(DEMOS[name], options.to or RESULTS / f"demo-{name}.png", options.shared, fewer)


def _play(demo: Demo, figure: Path, shared: Path, fewer: Mapping[str, Any]) -> None:
    from downpour.experiments.demos import data_in, play
    from downpour.show.tables.live import ProgressDisplay
    from downpour.show.tables.terminal_tables import text_table

    changes = {**data_in(RESULTS), **fewer}
    acted = []
    for number, act in enumerate(demo.acts, 1):
        note(f"{number} of {len(demo.acts)}: {act.title}")
        with ProgressDisplay(err()) as display:
            acted.append(play(act, changes, shared, display.show))
    table = demo.table(acted)
    cells = zip(*table.texts(), strict=True)
    columns = [(column.header, one) for column, one in zip(table.columns, cells, strict=True)]
    out().print(table.title, style="bold", highlight=False, markup=False)
    out().print(text_table(columns))
    say(f"Notice: {demo.notice(acted)}")
    _draw(demo, acted, figure)
    say("Repeat both runs:" if shared == SHARED else f"Repeat both runs (with --shared {shared}):")
    for performance in acted:
        say(f"  {performance.act.command(changes)}")


def _draw(demo: Demo, acted: Sequence[Acted], path: Path) -> None:
    """Draw the figure; if that fails, print one line, because the user has the table already."""
    try:
        require("the figure of downpour demo", "report")
    except MissingPackage as error:
        note(str(error))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_figure("to", path, demo.figure(acted))
    say(f"Figure: {path}")
