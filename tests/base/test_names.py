"""Names that users give: of arguments, of devices, and of a family's members."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import downpour as api
from downpour import launchers
from downpour.base.errors import SpecError
from downpour.base.names import Devices, Family, check_device, checked_call, nearest, trained_on
from downpour.cluster.launchers import LAUNCHERS
from downpour.core.families import FAMILIES
from downpour.core.modes import ModeKind
from downpour.core.spec import Spec
from downpour.core.stragglers.base import Policy
from downpour.launchers import LauncherKind

SPEC = {"epochs": 1}
# Without types, as in a notebook: a type checker tells of all these.
API: Any = api
OPTIONS: Any = launchers


@checked_call(["epochs"])
def train(spec: object, *, workers: int = 1, shared: str = "") -> object:
    """Stand for a function of ours."""
    return spec, workers, shared


TRAIN: Any = train


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: TRAIN(SPEC, worker=2), "worker = 2: … train(); did you mean workers?"),
        (
            lambda: TRAIN(SPEC, epochs=2),
            "epochs = 2: is a field of the spec, not an argument of train()",
        ),
        (TRAIN, "spec = None: is required by train()"),
        (
            lambda: TRAIN(SPEC, 2),
            "train = 2: too many positional arguments; name each argument after",
        ),
        (lambda: API.run(SPEC, worker=2), "worker = 2: … run(); did you mean workers?"),
        (lambda: API.run(epochs=3), "epochs = 3: is a field of the spec, not an argument of run()"),
        (lambda: API.run(SPEC, 2), "run = 2: too many positional arguments"),
        (lambda: API.Client(share="x"), "share = 'x': … Client(); did you mean shared?"),
        (lambda: API.Credentials(tokn="x"), "tokn = 'x': … Credentials(); did you mean token?"),
        (
            lambda: API.load_model(sources="x"),
            "sources = 'x': … load_model(); did you mean source?",
        ),
        (API.replay, "experiment = None: is required by replay()"),
        (lambda: API.replay("x", util=3), "util = 3: … replay(); did you mean until?"),
        (lambda: API.resumed(epochs=3), "experiment = None: is required by resumed()"),
        (
            lambda: OPTIONS.RayOptions(gpu_per_worker=1),
            "gpu_per_worker = 1: … RayOptions(); did you mean gpus_per_worker?",
        ),
        (
            lambda: OPTIONS.SlurmOptions(partitions="gpu"),
            "partitions = 'gpu': … SlurmOptions(); did you mean partition?",
        ),
        (lambda: OPTIONS.SshOptions(host="x"), "host = 'x': … SshOptions(); did you mean hosts?"),
        (
            lambda: OPTIONS.ComposeOptions(imag="x"),
            "imag = 'x': … ComposeOptions(); did you mean image?",
        ),
    ],
)
def test_a_wrong_argument_is_an_error_of_ours(call: Callable[[], Any], line: str) -> None:
    """It names the argument, its value, and what was probably meant."""
    with pytest.raises(SpecError) as refused:
        call()
    assert str(refused.value).startswith(line.replace("…", "no such argument of"))


def test_a_clients_methods_name_their_arguments_too() -> None:
    """Nothing is asked of a manager for them."""
    with API.Client("127.0.0.1:1") as client:
        with pytest.raises(SpecError, match=r"experiments = 'x': no such .* Client.wait\("):
            client.wait(experiments="x")
        with pytest.raises(SpecError, match=r"spec = None: is required by Client.submit\(\)"):
            client.submit()


def test_a_right_call_is_the_functions_own() -> None:
    """By place or by name, and with its defaults."""
    assert train(SPEC, workers=2) == train(spec=SPEC, workers=2) == (SPEC, 2, "")


def test_a_type_error_inside_is_not_taken_for_the_calls() -> None:
    """Only the arguments are judged."""

    @checked_call()
    def fails(number: int) -> int:
        return number + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        fails(1)


@pytest.mark.parametrize(
    ("unknown", "line"),
    [
        ("epoch", "did you mean epochs?"),
        ("lr", "did you mean learning_rate?"),
        ("num_train_epochs", "did you mean epochs?"),
        ("zzz", "the nearest are "),
    ],
)
def test_a_close_name_is_proposed(unknown: str, line: str) -> None:
    """By its letters, or by its initials."""
    assert nearest(unknown, ["epochs", "learning_rate", "seed"]).startswith(line)


BARE = Devices()
TWO_CARDS = Devices({"cuda": 2})
APPLE = Devices({"mps": 1})


@pytest.mark.parametrize(
    "name", ["cpu", "cuda", "cuda:0", "cuda:12", "mps", "xpu", "xpu:1", "auto"]
)
def test_a_spec_and_a_worker_take_what_people_type(name: str) -> None:
    """The names are torch's, and `auto`."""
    check_device(name)
    assert Spec.from_toml(Spec(device=name).to_toml()).device == name


@pytest.mark.parametrize(
    "name",
    ["", "gpu", "CUDA", "cuda:", "cuda:01", "cuda:-1", "cuda:100", "cpu:0", "mps:0", "auto:1"],
)
def test_an_unknown_device_is_refused_alike_everywhere(name: str) -> None:
    """A spec and a worker's option say the same."""
    with pytest.raises(SpecError) as of_option:
        check_device(name)
    with pytest.raises(SpecError) as of_spec:
        Spec(device=name)
    assert str(of_option.value) == str(of_spec.value)
    assert "must be cpu, cuda, mps, xpu or auto" in str(of_option.value)


@pytest.mark.parametrize(
    ("here", "best", "others"),
    [(BARE, "cpu", []), (TWO_CARDS, "cuda", ["cpu", "cuda:1"]), (APPLE, "mps", ["cpu"])],
    ids=str,
)
def test_a_machine_gives_what_it_has(here: Devices, best: str, others: list[str]) -> None:
    """Under the name that was asked for; auto is an accelerator where there is one."""
    assert here.chosen("auto") == here.nearest("auto") == best
    assert all(here.chosen(one) == here.nearest(one) == one for one in (best, *others))


@pytest.mark.parametrize(
    ("here", "asked", "has", "instead"),
    [
        (BARE, "cuda", "cpu", "cpu"),
        (BARE, "cuda:1", "cpu", "cpu"),
        (TWO_CARDS, "cuda:2", "cpu, cuda:0, cuda:1", "cuda"),
        (TWO_CARDS, "mps", "cpu, cuda:0, cuda:1", "cpu"),
        (APPLE, "xpu:0", "cpu, mps", "cpu"),
    ],
    ids=str,
)
def test_a_machine_names_what_it_has_instead(
    here: Devices, asked: str, has: str, instead: str
) -> None:
    """In one line; where any device will do, it is another of the kind, or the CPU."""
    with pytest.raises(SpecError) as refused:
        here.chosen(asked)
    line = f"device = '{asked}': torch finds no such device here, only {has}"
    assert str(refused.value) == line
    assert here.nearest(asked) == instead
    with pytest.raises(SpecError):
        here.spread(asked, 1)


@pytest.mark.parametrize(
    ("here", "asked", "taken"),
    [
        (TWO_CARDS, "cuda", ["cuda:0", "cuda:1", "cuda:0"]),
        (TWO_CARDS, "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        (TWO_CARDS, "cuda:1", ["cuda:1"] * 3),
        (TWO_CARDS, "cpu", ["cpu"] * 3),
        (Devices({"cuda": 1}), "cuda", ["cuda"] * 3),
        (APPLE, "auto", ["mps"] * 3),
        (BARE, "auto", ["cpu"] * 3),
    ],
    ids=str,
)
def test_workers_of_one_machine_take_its_cards_in_turn(
    here: Devices, asked: str, taken: list[str]
) -> None:
    """Unless one is asked for; what they train is what a spec of the kind asks for."""
    assert [here.spread(asked, place) for place in range(3)] == taken
    assert all(trained_on(asked, one) == one for one in taken)


@pytest.mark.parametrize(
    ("here", "asked", "cards"),
    [
        (BARE, "auto", 0),
        (BARE, "cuda", 0),
        (TWO_CARDS, "auto", 2),
        (TWO_CARDS, "cuda", 2),
        (TWO_CARDS, "cuda:1", 1),
        (TWO_CARDS, "cpu", 0),
        (APPLE, "auto", 1),
        (Devices({"cuda": 1, "xpu": 3}), "auto", 1),
    ],
    ids=str,
)
def test_a_machine_counts_the_cards_that_serve(here: Devices, asked: str, cards: int) -> None:
    """Each can have a worker; without any, the cores decide."""
    assert here.cards(asked) == cards


@pytest.mark.parametrize(
    ("asked", "own", "there"),
    [
        ("cpu", "cpu", "cpu"),
        ("cpu", "cuda:1", "cpu"),
        ("cuda", "cuda", "cuda"),
        ("cuda", "cuda:1", "cuda:1"),
        ("cuda:0", "cuda", "cuda"),
        ("cuda:1", "cuda:1", "cuda:1"),
        ("auto", "cpu", "cpu"),
        ("auto", "mps", "mps"),
        ("auto", "xpu:1", "xpu:1"),
        ("cuda", "cpu", None),
        ("cuda:1", "cuda", None),
        ("cuda:1", "cuda:0", None),
        ("mps", "cuda", None),
        ("xpu", "cuda:1", None),
    ],
)
def test_a_worker_trains_on_its_own_device_or_not_at_all(
    asked: str, own: str, there: str | None
) -> None:
    """The one who starts a worker decides on its card; a spec may leave that open."""
    assert trained_on(asked, own) == there


ALL = [*FAMILIES.values(), LAUNCHERS]

EXTENDING = Path(__file__).parents[2] / "examples" / "extending"
"""A package with a policy, a splitter, a codec, an aggregator and a launcher."""

MORE = """
[downpour.policies]
gone = no_such_module:GONE

[downpour.policy]
mine = others:MINE

[downpour.commands]
hello = others:hello
gone = no_such_module:GONE
"""

CODE = '''
def hello():
    """Say hello."""
    print("hello")
'''


def entry_points() -> str:
    """Return what installing the package registers."""
    project = tomllib.loads((EXTENDING / "pyproject.toml").read_text("utf-8"))["project"]
    lines = []
    for group, members in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in members.items())]
    return "\n".join(lines)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def downpour(tmp_path: Path) -> Command:
    """Run a command where a package is installed that Downpour knows nothing of."""
    package = tmp_path / "site"
    for name, points in (("extras", entry_points()), ("others", MORE)):
        (package / f"{name}-1.0.dist-info").mkdir(parents=True)
        (package / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (package / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(points)
    (package / "others.py").write_text(CODE)
    shutil.copy(EXTENDING / "extras.py", package)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "downpour", *words]
        path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
        )

    return run


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.field)
def test_a_name_is_all_that_a_member_needs(family: Family) -> None:
    """Each can be imported, and is what its family is made of."""
    kinds = {"mode": ModeKind, "policy": Policy, LAUNCHERS.field: LauncherKind}
    for name in family.examples:
        assert family.check(name) == name
        assert name == "none" or isinstance(family[name], kinds.get(family.field, object))
    assert "nothing" not in family
    with pytest.raises(KeyError):
        family["nothing"]


def test_a_close_member_is_suggested() -> None:
    """One line says what the field accepts."""
    with pytest.raises(
        SpecError, match=r"^policy = 'wiat': must be wait, .*; did you mean wait\?$"
    ):
        FAMILIES["policy"].check("wiat")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "trimmed-mean",
            "must be average, weighted, samples, first, median or trimmed-mean(SHARE)",
        ),
        ("trimmed-mean(x)", "must be average, "),
        ("median(0.2)", "must be average, "),
        ("(0.2)", "must be average, "),
        ("trimmed-mean(0.5)", "must be trimmed-mean(SHARE), SHARE above 0 and below 0.5"),
        ("trimmed-mean(1.2.3)", "must be trimmed-mean(SHARE), SHARE above 0 and below 0.5"),
    ],
)
def test_a_number_belongs_to_a_member_that_wants_one(text: str, line: str) -> None:
    """It is in brackets, and within limits."""
    with pytest.raises(SpecError) as refused:
        FAMILIES["aggregate"].check(text)
    assert str(refused.value).startswith(f"aggregate = '{text}': {line}")


def test_names_are_known_before_anything_is_imported() -> None:
    """Help and a spec's checks must not import numpy codecs, or launchers' libraries."""
    code = "import sys; from downpour.core import families; list(families.CODECS); "
    code += "print('downpour.files.compression' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_the_page_shows_the_package() -> None:
    """Its code, and what it registers."""
    page = (EXTENDING.parents[1] / "docs" / "how-to" / "extend.md").read_text("utf-8")
    assert f"```python\n{(EXTENDING / 'extras.py').read_text('utf-8')}```" in page
    shown = page.partition("```toml\n")[2].partition("```")[0]
    assert shown in (EXTENDING / "pyproject.toml").read_text("utf-8")


@pytest.mark.slow
def test_what_a_package_brings_trains_and_replays(downpour: Command, tmp_path: Path) -> None:
    """Named like Downpour's own, with options on the command line, in a training to its end."""
    words = ("--epochs", "1", "--policy", "latest-first", "--split", "sorted", "--workers", "3")
    more = ("--compression", "halves", "--aggregate", "near-median")
    ran = downpour("run", *words, *more, "--on", "nice", "--niceness", "1", "--json")
    assert ran.returncode == 0, ran.stderr
    assert all(f'"{name}"' in ran.stdout for name in ("latest-first", "sorted", "near-median"))
    assert "updates (halves): " in ran.stdout
    (record,) = tmp_path.rglob("record.jsonl")
    assert '"reason":"latest first"' in record.read_text().replace('": ', '":')
    again = downpour("replay", record.parent.name)
    assert "checksums agree" in again.stdout


@pytest.mark.slow
def test_help_and_errors_name_what_a_package_brings(downpour: Command) -> None:
    """As they name all other members."""
    told = " ".join(downpour("run", "--help-all").stdout.split())
    for listed in (
        "compose (containers of a compose file) or nice",
        "--niceness N",
        "or latest-first.",
        "random, class, equal, dirichlet(ALPHA) or sorted.",
        "or near-median.",
        "or halves.",
    ):
        assert listed in told
    wrong = downpour("run", "--policy", "latest-frist")
    assert wrong.stderr.rstrip().endswith("or latest-first; did you mean latest-first?")


def test_a_package_that_cannot_be_imported_costs_one_line(downpour: Command) -> None:
    """It says which module, and why."""
    wrong = downpour("run", "--policy", "gone")
    assert wrong.returncode == 2
    reason = "(ModuleNotFoundError: No module named 'no_such_module')"
    gone = f"policy = 'gone': cannot be imported from no_such_module:GONE {reason}"
    assert wrong.stderr == f"downpour: {gone}\n"
    misplaced = "a package has it in the group downpour.policy, but it must be in downpour.policies"
    assert downpour("run", "--policy", "mine").stderr.endswith(f"; {misplaced}\n")


@pytest.mark.slow
def test_a_package_brings_a_command(downpour: Command) -> None:
    """The help lists it, and a command that cannot be imported with the reason; others work."""
    assert downpour("hello").stdout == "hello\n"
    listed = " ".join(downpour("--help").stdout.split())
    assert "hello Say hello." in listed
    assert "gone cannot be imported from no_such_module:GONE" in listed
    assert downpour("gone").returncode == 2
    assert downpour("gone").stderr.startswith("downpour: command = 'gone': cannot be imported")
