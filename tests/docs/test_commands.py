"""The commands, options and variables that pages name are there."""

import re
import shlex
from functools import cache
from typing import Any

import pytest
from typer import Context

from downpour.cli.commands import build
from downpour.files.store.shared_directory import LOCAL_VARIABLE
from downpour.learning.allowlist import FOLDERS, VARIABLE
from tests.docs.commands import Shown, calls, shown
from tests.docs.pages import BESIDE, DOCS, ROOT, WRITTEN, Page

PAGES = [*WRITTEN, *BESIDE]
COMMANDS = [command for page in PAGES for command in shown(page)]

STAND_FOR = {"DIR": "."}
"""What a reader replaces by something that has to be there already."""


@cache
def commands_there_are() -> Any:
    """Return the command line."""
    return build()


def parse(words: tuple[str, ...]) -> None:
    """Take a command line as `downpour` does, or raise click.UsageError, and run nothing."""
    command: Any = commands_there_are()
    context = Context(command, info_name="downpour", **command.context_settings)
    rest = [STAND_FOR.get(word, word) for word in words]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"no command {name}"
        context = Context(command, info_name=name, parent=context)
    if not hasattr(command, "commands"):
        command.make_context(context.info_name, rest, parent=context.parent)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_is_indented_only(page: Page) -> None:
    """A fence names its language: for readers, for copying, and for these tests."""
    assert [token.content for token in page.tokens() if token.type == "code_block"] == []


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_parses(command: Shown) -> None:
    """What a reader copies from a block is one that `downpour` accepts."""
    parse(command.words)


def test_commands_are_found_as_a_shell_would() -> None:
    """Behind a prompt, a variable and another command, and not in an argument."""
    assert calls("A=1 B=2 .venv/bin/downpour run x && downpour list | less # downpour no") == [
        ("run", "x"),
        ("list",),
    ]
    assert calls("echo downpour run") == []
    assert len(COMMANDS) > 150


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")
READ = re.compile(r"\bDOWNPOUR_[A-Z_]+[A-Z]\b")
OF_OTHERS = {
    **dict.fromkeys(("--array", "--constraint", "--cpus-per-task"), "Slurm"),
    **dict.fromkeys(("--head", "--labels"), "Ray"),
    "--append": "wandb",
    "--logdir": "TensorBoard",
    **dict.fromkeys(("--build", "--memory", "--scale", "--shm-size"), "Docker"),
    "--replicas": "kubectl",
}
"""Options on pages that are not ours, and whose they are."""


@cache
def options_there_are() -> set[str]:
    """Return those of our commands, and of the scripts that measure and test."""
    pages = (DOCS / "reference" / name for name in ("cli.md", "spec.md"))
    ours = {option for page in pages for option in OPTION.findall(page.read_text("utf-8"))}
    scripts = (path for name in ("benchmarks", "tests") for path in (ROOT / name).rglob("*.py"))
    for script in scripts:
        ours.update(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', script.read_text("utf-8")))
    return ours


@cache
def variables_there_are() -> set[str]:
    """Return those in the commands' help, and those that are read without being an option."""
    compose = (ROOT / "docker" / "compose.yaml").read_text("utf-8")
    reference = (DOCS / "reference" / "cli.md").read_text("utf-8")
    return {VARIABLE, FOLDERS, LOCAL_VARIABLE, *READ.findall(reference), *READ.findall(compose)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_and_variable_exists(page: Page) -> None:
    """Each `--option` is one of a command or a script of ours, each variable is read somewhere."""
    assert set(OPTION.findall(page.text)) <= options_there_are() | set(OF_OTHERS)
    assert set(READ.findall(page.text)) <= variables_there_are()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_sentence_is_one(page: Page) -> None:
    """`downpour NAME` in a line of text, with or without what follows."""
    group = commands_there_are()
    for span in page.spans():
        words = shlex.split(span) if span.startswith("downpour ") else []
        if len(words) > 1 and re.fullmatch("[a-z][a-z-]*", words[1]):
            assert words[1] in group.commands, f"{page.name}: {span}"
