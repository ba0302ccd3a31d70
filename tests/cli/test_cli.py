"""The command as a whole: its help, and that it starts at once and imports only what it needs."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup

from downpour.base import VERSION
from downpour.cli import main
from downpour.cli.commands import (
    COMMANDS,
    FIRST,
    GROUPS,
    build,
    first_groups,
    groups,
    sentence,
    titled_commands,
    words,
)

LISTED = (
    *("run", "manager", "worker", "submit", "status", "watch", "list", "cancel", "results"),
    *("ping", "certs", "simulate"),
)

HEAVY = ("torch", "numpy", "thrift", "sklearn", "rich", "cryptography")


def test_without_words_the_commands_are_listed(downpour: Callable[..., Any]) -> None:
    """`downpour` alone is `downpour --help`; each command has a line that is not cut."""
    alone = downpour()
    assert alone.status == 0
    assert alone == downpour("--help")
    for command in LISTED:
        assert f"  {command} " in alone.out
    head, found, listed = alone.out.partition("Train a model:")
    assert found
    assert "COMMAND" in head
    assert "..." not in listed


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["frobnicate"], "No such command 'frobnicate'."),
        (["stat"], "No such command 'stat'. Did you mean 'status'?"),
        (["run", "--zzz"], "No such option: --zzz"),
        (["run", "--lr", "1"], "No such option: --lr (Possible options: --learning-rate)"),
        (["run", "--gpus", "1"], "No such option: --gpus (Possible options: --device)"),
        (["run", "--num-workers=2"], "No such option: --num-workers (Possible options: --workers)"),
        (["submit", "--deadline", "1"], "No such option: --deadline"),
        (
            ["submit", "--data-dir", "data"],
            "No such option: --data-dir; the manager has the data, so give it to `up` or `manager`",
        ),
        (["run", "--epoch", "3"], "No such option: --epoch (Possible options: --epochs)"),
        (
            ["run", "--snapshot-evry", "3"],
            "No such option: --snapshot-evry (Possible options: --snapshot-every)",
        ),
        (["run", "--help-al"], "No such option: --help-al (Possible options: --help-all)"),
        (["run", "--epochs"], "Option '--epochs' requires an argument."),
        (["run", "a.toml", "b.toml"], "Got unexpected extra argument(s) (b.toml)"),
        (["cancel"], "Missing argument 'ID'."),
        (["results"], "Missing argument 'ID'."),
    ],
)
def test_a_mistake_in_the_words_is_told_in_one_line(
    refused: Callable[..., str], words: list[str], line: str
) -> None:
    """Unknown commands and options, missing and superfluous arguments."""
    assert refused(*words) == line


def test_help_needs_no_heavy_library() -> None:
    """What takes long to import is imported by the commands that need it."""
    look = "import sys, downpour.cli\nfor words in (['--help'], ['run', '--help-all']):\n"
    look += "    downpour.cli.run_command(words)\n"
    look += f"print(sorted(set({HEAVY}) & set(sys.modules)), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stderr == "[]\n"
    assert found.stdout.count("Usage: downpour ") == 2


def test_the_version_is_told(downpour: Callable[..., Any]) -> None:
    """In one line, as bug reports need it."""
    assert downpour("--version") == downpour("--version", "run")
    assert downpour("--version").out == f"downpour {VERSION}\n"


@pytest.mark.parametrize("words", [[], ["run"], ["predictor"], ["predictor", "train"]])
def test_help_is_short_too(downpour: Callable[..., Any], words: list[str]) -> None:
    """`-h` is `--help`, wherever it stands."""
    assert downpour(*words, "-h") == downpour(*words, "--help")
    assert downpour(*words, "-h").status == 0


def test_a_group_alone_shows_its_help(downpour: Callable[..., Any]) -> None:
    """On standard output, in lines of its own."""
    assert downpour("predictor") == downpour("predictor", "--help")
    assert "\n  train  Train predictors" in downpour("predictor").out


def asked_by_a_shell(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    """Start the program as a shell does that completes a line: through the environment."""
    with monkeypatch.context() as asking:
        asking.setattr(sys, "argv", ["downpour"])
        for name, value in environment.items():
            asking.setenv(name, value)
        with pytest.raises(SystemExit):
            main()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("downpour si", "simulate\n"),
        ("downpour run --epo", "--epochs\n"),
        ("downpour run --snapshot", "--snapshot-every\n"),  # which `--help` does not show
    ],
)
def test_the_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, found: str
) -> None:
    """The shell asks the program itself."""
    place = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    asked_by_a_shell(monkeypatch, _DOWNPOUR_COMPLETE="complete_bash", **place)
    assert capsys.readouterr().out == found


@pytest.mark.parametrize(
    ("shell", "sign"),
    [
        ("bash", "complete -o"),
        ("zsh", "#compdef downpour"),
        ("fish", "complete --command downpour"),
    ],
)
def test_a_shell_gets_a_script_that_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, sign: str
) -> None:
    """This is what `--install-completion` writes where the shell finds it."""
    asked_by_a_shell(monkeypatch, _DOWNPOUR_COMPLETE=f"source_{shell}")
    assert sign in capsys.readouterr().out


# What shows, reports or trains; each costs 0.05 to 4 s of a processor.
SHOWS = {"rich", "matplotlib", "pandas", "sklearn", "scipy", "cryptography", "obstore", "optuna"}

OTHERS = {"downpour.cluster.launchers", "downpour.experiments", "downpour.show", "downpour_lab"}

NEVER = SHOWS | OTHERS

TORCH = {"torch", "sympy"}

_IMPORTED = re.compile(r"import time: .*\| +(\S+)$")


@contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a command that tells on standard error what it imports, and kill it at the end."""
    command = [sys.executable, "-X", "importtime", "-m", "downpour", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def imported_until(sign: str, running: subprocess.Popen[str]) -> tuple[set[str], str]:
    """Return the packages and parts of ours that were imported before a line, and that line."""
    names = set()
    for line in running.stderr or ():
        if found := _IMPORTED.match(line.rstrip()):
            first, *more = found[1].split(".")
            names |= {first, *(f"{first}.{part}" for part in more[:1])}
        elif line.startswith(sign):
            return names, line
    raise AssertionError(f"no line begins with {sign!r}")


@pytest.mark.parametrize("command", ["ping", "manager", "worker"])
def test_a_command_imports_itself_alone(command: str) -> None:
    """The other commands' modules stay out, so that health checks and workers start quickly."""
    with process(command, "--no-such-option") as running:
        names, _ = imported_until("downpour: No such option", running)
    assert not names & (
        NEVER | TORCH | {"numpy", "thrift", "downpour.core.spec", "downpour.network.rpc"}
    )


def test_predictors_from_a_file_are_scored_without_torch(tmp_path: Path) -> None:
    """Only a predictor that is trained needs it."""
    with process("predictor", "score", tmp_path / "none.npz") as running:
        names, _ = imported_until("downpour: ", running)
    assert "downpour_lab.fitting" in names
    assert not names & TORCH


def test_managers_and_workers_and_health_checks_import_what_they_need(tmp_path: Path) -> None:
    """A manager until it serves, a worker until it has registered, and a check altogether."""
    with process("manager", "--port", 0, "--shared", tmp_path) as manager:
        names, line = imported_until("manager at ", manager)
        assert not names & NEVER
        address = line.split()[2].rstrip(",")
        with process("worker", "--manager", address, "--shared", tmp_path) as worker:
            names, _ = imported_until("worker at ", worker)
            assert not names & (NEVER | {"downpour.core.scheduler", "torch._dynamo", "sympy"})
        with process("ping", address, "--shared", tmp_path) as check:
            names = set(re.findall(r"\| +([\w.]+)$", check.communicate()[1], re.MULTILINE))
            assert check.returncode == 0
        assert not names & (NEVER | TORCH | {"downpour.core.scheduler", "downpour.core.spec"})


MOST_ROWS = 22
"""How many arguments and options `--help` shows at most."""


def top() -> tuple[TyperGroup, Context]:
    """Return the command line and its context."""
    group = build()
    assert isinstance(group, TyperGroup)
    return group, Context(group, info_name="downpour", **group.context_settings)


def commands() -> list[Any]:
    """Return every command of the first level."""
    return list(top()[0].commands.values())


def leaves() -> dict[str, tuple[Any, Context]]:
    """Return by its words every command that runs, and its context."""
    found = {}
    group, above = top()
    for command in group.commands.values():
        own = Context(command, info_name=command.name, parent=above)
        for part in getattr(command, "commands", {}).values():
            inner = Context(part, info_name=part.name, parent=own)
            found[inner.command_path.removeprefix("downpour ")] = (part, inner)
        if not isinstance(command, TyperGroup):
            found[str(command.name)] = (command, own)
    return found


def rows(shown: str) -> set[str]:
    """Return what stands at the left of a help's lines."""
    return {line[2:].partition("  ")[0] for line in shown.splitlines() if line[:2] == "  "}


LEAVES = leaves()


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_command_and_option_has_a_help_text(command: Any) -> None:
    """A sentence each, which ends like one."""
    assert command.help.split("\n")[0].endswith(".")
    params = command.get_params(Context(command))
    assert len(params) == len(command.params) + 1 + (not isinstance(command, TyperGroup))
    for param in params:
        assert param.help, param.name
        assert param.help.strip().endswith("."), param.help
        assert "None" not in words(param) + sentence(param)


def test_each_command_is_listed_under_exactly_one_title(downpour: Callable[..., Any]) -> None:
    """No command is lost, none stands twice, and each title has several."""
    group, context = top()
    titled = titled_commands(group, context)
    listed = [command.name for _, found in titled for command in found]
    assert sorted(listed) == sorted(n for n, one in group.commands.items() if not one.hidden)
    assert [title for title, _ in titled] == list(GROUPS)
    assert sorted(group.commands) == sorted(COMMANDS)
    assert all(len(found) >= 3 for _, found in titled)
    shown = downpour("--help").out
    for title, found in titled:
        assert f"\n{title}:\n  {found[0].name} " in shown


@pytest.mark.parametrize("name", FIRST)
def test_first_options_exist(name: str) -> None:
    """Each is an option of its command, named once, and `--help` shows them in this order."""
    command, context = LEAVES[name]
    shown = [param for title, found in first_groups(command, context) for param in found]
    names = [option for param in shown for option in param.opts if option in FIRST[name]]
    assert names == list(FIRST[name])
    assert len(shown) < len([p for _, found in groups(command, context) for p in found])


@pytest.mark.parametrize("name", LEAVES)
def test_help_fits_a_mind_and_help_all_shows_everything(
    downpour: Callable[..., Any], name: str
) -> None:
    """The last line of a shortened help says how many options are left, and how to see them."""
    command, context = LEAVES[name]
    short, every = (downpour(*name.split(), option) for option in ("--help", "--help-all"))
    assert (short.status, every.status, every.err) == (0, 0, "")
    everything = command.get_params(context)
    left = [param for param in everything if words(param) not in rows(short.out)]
    if name in FIRST:
        last = f"downpour {name} --help-all shows {len(left)} more options."
        assert short.out.splitlines()[-1] == last
    else:
        assert [param.opts for param in left] == [["--help-all"]]
        assert short == every
        everything.remove(left[0])
    assert len(everything) - len(left) <= MOST_ROWS
    assert {words(param) for param in everything} <= rows(every.out)


@pytest.mark.parametrize("name", FIRST)
def test_in_the_whole_help_first_options_come_first(name: str) -> None:
    """In each group, on the screen and on the page: most needed first."""
    for _, params in groups(*LEAVES[name]):
        needed = [bool(set(param.opts) & set(FIRST[name])) for param in params]
        assert needed == sorted(needed, reverse=True)


def test_choices_defaults_and_variables_are_shown(downpour: Callable[..., Any]) -> None:
    """An option's help shows the accepted values beside its name, and ends with the default."""
    said = " ".join(downpour("run", "--help-all").out.split())
    choices = "average|weighted|samples|first|median|trimmed-mean(SHARE)"
    assert f"--aggregate {choices} How updates" in said
    assert "--flip/--no-flip Mirror each" in said
    assert "--betas X,X Decay rates of adam's averages. [default: 0.9,0.999]" in said
    assert "--dataset-options KEY=VALUE" in said
    assert "[default: shared_dir; environment: DOWNPOUR_SHARED]" in said
    assert "Usage: downpour run [OPTIONS] [FILE]" in said


def test_long_lists_of_options_stand_in_groups(downpour: Callable[..., Any]) -> None:
    """A command's own options come first, then the spec's, then those of where it runs."""
    lines = downpour("run", "--help-all").out.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[:3] == ["Arguments:", "Options:", "The experiment:"]
    assert len(titles) == 14
    assert max(map(len, lines)) <= 80
