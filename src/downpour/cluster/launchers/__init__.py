"""Launchers, which start managers and workers: their interfaces, their kinds, a user's choice.

A caller that trains holds a `RunningCluster`: a manager and its workers, wherever they run. An
`Engine` does less: it starts single workers somewhere, and `cluster.py` turns it into a cluster.

A `LauncherKind` is everything that `--on`, `[launch]`, help texts and `--dry-run` need to know.
Each launcher's module ends with its `KIND`. `LAUNCHERS` registers it by name, or an installed
package does. The options of a kind are a frozen dataclass. `option` makes its fields, and
command-line options follow from them. Help texts import all these modules, and must not wait for
numpy. So functions import what needs it.

Users choose by the options of a command, and by the table `[launch]` of a file. They have `on`,
`workers`, and options of all plans (`LaunchPlan`) and of single kinds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, Field, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, get_type_hints

from downpour.base import options
from downpour.base.errors import SpecError, did_you_mean
from downpour.base.names import AUTO, Family, Member
from downpour.base.options import OptionText, checked_seconds, option, option_words, options_of
from downpour.base.values import checked_labels, merged, missing
from downpour.cluster.options import ManagerOptions, WorkerOptions
from downpour.host.paths import TOKEN_NAME, Credentials

if TYPE_CHECKING:
    from downpour.core.spec import Spec

ALONE_SECONDS = 60.0
"""The lease of a run's worker. The launcher replaces a dead manager within seconds. If one stays
away for longer, someone killed the run, and the worker gives back what it was lent."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A manager and its workers, before anything starts.

    While they run, straggler policies may ask for more workers, at most `workers` more. The
    launcher gives these back once they have been idle for `idle_seconds`; with 0 they stay. A
    worker computes with `threads` threads on `device`, and has `labels`. Only workers whose labels
    meet the experiment's `needs` may train it, so a launcher that knows its machines' labels uses
    only machines that meet them. The process that forks the manager first imports what the
    experiment's code `imports` from packages. Workers and manager have the same `loaders`.
    """

    manager: ManagerOptions
    workers: int
    _: KW_ONLY
    threads: int = 1
    device: str = AUTO
    idle_seconds: float = option(
        0.0,
        "Give back a worker that a policy asked for after it has been idle for this long; 0: keep "
        "it. Inline workers, and those of one run with `--on local`, stay.",
        "X",
    )
    labels: tuple[str, ...] = option(
        (),
        "A label for all workers that the command starts; specs and shards can require labels. "
        "Repeatable.",
        "KEY=VALUE",
        default=False,
        flag="--label",
    )
    loaders: str = options.loaders()
    notice: str = options.notice()
    needs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what users may set."""
        checked_seconds("idle_seconds", self.idle_seconds)
        checked_labels(self.labels)
        object.__setattr__(self, "manager", replace(self.manager, loaders=self.loaders))

    def worker(self, number: int, address: str) -> WorkerOptions:
        """Return how to start worker `number`, from 1; it accepts its user's code."""
        return WorkerOptions(
            manager=address,
            shared=self.manager.shared,
            name=f"worker-{number}",
            device=self.device,
            place=number - 1,
            labels=self.labels,
            loaders=self.loaders,
            notice=self.notice,
            accepts_code=True,
            alone_seconds=ALONE_SECONDS if self.manager.embedded else 0.0,
            credentials=self.manager.credentials,
        )

    def reached_at(self, host: str) -> Self:
        """Return the plan with the manager at this host; other hosts than loopback need a token."""
        from downpour.network.rpc import Address

        manager = replace(self.manager, host=host)
        if not Address(host, 0).is_loopback and manager.credentials == Credentials():
            token = Path(manager.shared) / TOKEN_NAME
            manager = replace(manager, credentials=Credentials(token_file=str(token)))
        return replace(self, manager=manager)


class RunningCluster(AbstractContextManager["RunningCluster"], Protocol):
    """A manager and its workers, from `with` until the block ends.

    Entering the block starts them, and raises LaunchError if they cannot start. Leaving it stops
    everything that has started, even after an error.
    """

    @property
    def address(self) -> str:
        """The manager's address, HOST:PORT, as this process reaches it."""

    @property
    def credentials(self) -> Credentials:
        """The credentials of this cluster's clients."""

    @property
    def log(self) -> Path:
        """The file to which the processes write their logs."""

    @property
    def workers(self) -> Sequence[str]:
        """The names of workers that run, or that the launcher will restart."""

    def check(self) -> None:
        """Restart processes that need it; raises LaunchError if the cluster cannot go on."""

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers that a policy asked for, until `wanted` of them have been started.

        If the plan says so, the launcher gives back workers that have been `idle` for a while.
        """


Launcher = Callable[[LaunchPlan], RunningCluster]
"""Makes a cluster from a plan; starts nothing yet."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a worker: its exit status (None: unknown), and its last words."""

    status: int | None
    reason: str = ""


class Engine(Protocol):
    """Starts workers somewhere, and knows which of them have ended."""

    @property
    def manager_host(self) -> str:
        """This machine's address as the workers reach it; a loopback address if they run here."""

    def check(self, plan: LaunchPlan) -> None:
        """Refuse a plan that cannot work, before anything starts; may reserve what workers need.

        A LaunchError names the first obstacle and the host. Without one, the caller must `close`.
        """

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start a worker with further environment variables; returns at once.

        The worker appends its log to the file `log`, on this machine or in the shared directory. A
        replacement takes over the name of the worker that has ended. LaunchError: not now.
        """

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers that have ended since the last call, by name."""

    def stop(self, name: str) -> None:
        """Tell a worker to leave; returns at once."""

    def close(self) -> None:
        """Stop all workers that were started, and wait until they have ended."""


# Other values have a special meaning for an engine: Ray reads !in(…), and Slurm a40&nvlink.
_PLACE = re.compile(r"[\w.-]+=[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)


def manager_host() -> Any:
    """Return the field that all launchers have whose workers run on other machines."""
    text = "This machine's address, as the workers' machines reach it."
    return option("", text, "ADDRESS", default="the one that they see, or the address of its name")


def place() -> Any:
    """Return the field that all launchers have whose engine chooses machines by properties.

    `checked_place` checks it. Workers get its pairs as labels, so that labels and machine agree.
    """
    text = (
        "Start workers only on matching machines: VALUE is a feature of a Slurm node, "
        "KEY=VALUE is a label of a Ray node. Each worker gets it as a --label, too. "
        "Repeatable."
    )
    return option((), text, "KEY=VALUE", default=False)


def checked_place(place: Sequence[str]) -> None:
    """Refuse places that we could not ask an engine for."""
    for one in place:
        if not _PLACE.fullmatch(one):
            accepted = "must be KEY=VALUE, where VALUE has only letters, digits, '-', '_' and '.'"
            raise SpecError("place", one, accepted)
    try:
        checked_labels(place)
    except SpecError as error:
        raise SpecError("place", error.value, error.accepted) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherKind:
    """A place to run on.

    Args:
        title: the heading of its options in help.
        options: the dataclass of its options; None if it has none.
        make: makes a launcher from its options, or from None. It refuses invalid options, because
            we call it before we start or create anything.
        planned: takes the options and a plan, and returns what the launcher would submit or run.
        labels: takes the options, and returns the labels that the launcher gives its workers in
            addition to the command's, once for each sort of machine.
    """

    title: str
    make: Callable[[Any], Launcher]
    options: type | None = None
    planned: Callable[[Any, LaunchPlan], str] | None = None
    labels: Callable[[Any], Sequence[tuple[str, ...]]] = lambda _: [()]

    def texts(self) -> dict[str, tuple[Field[Any], OptionText]]:
        """Return its options by name."""
        return options_of(self.options)

    def given(self, options: Mapping[str, Any]) -> Any:
        """Return its options with the given values, if they are valid; lists become tuples."""
        for name, value in options.items():
            if name not in self.texts():
                raise SpecError(name, value, f"is not an option of {self.title}")
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
        return None if self.options is None else self.options(**values)

    def launcher(self, options: Mapping[str, Any]) -> Launcher:
        """Return a launcher with the given options; raises as `given` does."""
        return self.make(self.given(options))


LAUNCHERS = Family(
    "on",
    "downpour.launchers",
    {
        "local": Member("downpour.cluster.launchers.cluster:KIND", "processes of this machine"),
        "inline": Member(
            "downpour.cluster.launchers.cluster:INLINE", "threads of this process, for a debugger"
        ),
        "slurm": Member("downpour.cluster.launchers.slurm:KIND", "jobs"),
        "ray": Member("downpour.cluster.launchers.ray:KIND", "actors"),
        "ssh": Member("downpour.cluster.launchers.ssh:KIND", "on other machines"),
        "compose": Member(
            "downpour.cluster.launchers.compose:KIND", "containers of a compose file"
        ),
    },
)
"""The launchers that users can name, each as a `LauncherKind`."""


def kind_of(on: str) -> LauncherKind:
    """Return a kind of launcher by its name."""
    kind: LauncherKind = LAUNCHERS[LAUNCHERS.check(on)]
    return kind


def launcher_of(on: Launcher | str) -> Launcher:
    """Return a launcher that the caller gives as an object or by name."""
    return kind_of(on).launcher({}) if isinstance(on, str) else on


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """A launcher that makes clusters as a user wants them, and the words that the user chose."""

    on: str
    launcher: Launcher
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the launcher."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every plan."""
    workers: int | None = None

    @classmethod
    def of(cls, typed: Mapping[str, Any], table: Mapping[str, Any]) -> Self:
        """Make it from typed options and a checked table; what a user typed comes first.

        The table's options belong to its launcher. If the user names another one, we ignore them.
        """
        given = {name: value for name, value in typed.items() if value not in (None, [])}
        on, named = given.get("on"), given.get("on") or table.get("on", "local")
        kind, its = kind_of(named), owners()
        options = {n: v for n, v in table.items() if n in its and (on is None or on in its[n])}
        options |= {n: v for n, v in given.items() if n in its}
        for name, value in options.items():
            if named not in its[name]:
                raise SpecError(name, value, f"needs --on {' or '.join(its[name])}")
        launcher = kind.launcher(options)
        settings: dict[str, Any] = {}
        for name, key in _keys().items():
            if (value := given.get(name, table.get(key))) is not None:
                settings[name] = tuple(value) if isinstance(value, list) else value
        LaunchPlan(ManagerOptions(), 1, **settings)  # refuses invalid settings
        return cls(
            on=named,
            launcher=lambda plan: launcher(replace(plan, **settings)),
            options=options,
            settings=settings,
            workers=given.get("workers", table.get("workers")),
        )

    def check(self, spec: Spec) -> None:
        """Refuse a spec that needs labels that no worker will have."""
        refuse_unmet(spec, self.on, self.options, self.settings.get("labels", ()))

    def words(self) -> list[str]:
        """Return command-line words that ask for the same launcher."""
        keys = _keys()
        named = {keys[name]: value for name, value in self.settings.items()} | {**self.options}
        words = ["--on", self.on]
        for name, value in named.items():
            words += option_words(f"--{name.replace('_', '-')}", value)
        return words

    def planned(self, plan: LaunchPlan) -> str:
        """Return a description of the processes that a plan would start."""
        kind = kind_of(self.on)
        if kind.planned is None:
            accepted = f"needs --on {' or '.join(planning())}"
            raise SpecError("dry_run", value=True, accepted=accepted)
        return kind.planned(kind.given(self.options), plan)


def launch_of(file: Path) -> Launching:
    """Return what a file's table asks for, or the defaults if the file has none."""
    from downpour.files.spec_file import read_launch

    table = checked_table(read_launch(file), file, takes_workers=True)
    on, its = table.get("on", "local"), owners()
    for name, value in table.items():
        if name in its and kind_of(on) and on not in its[name]:
            raise SpecError(f"launch.{name}", value, f"needs on = {' or '.join(its[name])}")
    return Launching.of({}, table)


def refuse_unmet(spec: Spec, on: str, options: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Refuse a spec that no worker of a launcher could train, because it would wait forever.

    `options` are those of the launcher `on`, and all workers have `labels`.
    """
    if not (spec.needs or spec.shard_needs):
        return
    kind = kind_of(on)
    sorts = [merged(labels, own) for own in kind.labels(kind.given(options))]
    wanted = {"needs": spec.needs}
    wanted |= {
        f"shard_needs.{shard}": (*spec.needs, *needs) for shard, needs in spec.shard_needs.items()
    }
    for name, needs in wanted.items():
        # Name the labels that the best sort of machine lacks, because ssh's hosts differ.
        lacking = min((missing(own, needs) for own in sorts), key=len)
        if lacking:
            key = lacking[0].partition("=")[0]
            accepted = f"the workers to start lack this label; add --label {key}=VALUE"
            raise SpecError(name, lacking[0], accepted)


_WORDS = {str: "text", float: "a number", int: "a whole number", list[str]: "a list of strings"}


def checked_table(table: Mapping[str, Any], file: Path, *, takes_workers: bool) -> dict[str, Any]:
    """Return a table's fields, with paths as this process finds them."""
    from pydantic import TypeAdapter, ValidationError

    kinds: dict[str, Any] = {"on": str} | ({"workers": int} if takes_workers else {})
    paths, counts = set(), set()
    for kind in (LaunchPlan, *(kind_of(on).options for on in LAUNCHERS)):
        hints = {} if kind is None else get_type_hints(kind)
        for name, (_, text) in options_of(kind).items():
            key = text.key(name)
            kinds[key] = list[str] if hints[name] == tuple[str, ...] else hints[name]
            counts |= {key} if text.reads == "count" else set()
            paths |= {key} if text.path else set()
    checked = {}
    for name, value in table.items():
        if name not in kinds:
            hint = did_you_mean(name, kinds, before="") or f"there are {', '.join(kinds)}"
            raise SpecError(f"launch.{name}", value, f"no such option; {hint}")
        if name in counts:
            value = str(value)  # noqa: PLW2901 - the command line gives it as text, and it is checked
        try:
            checked[name] = TypeAdapter(kinds[name]).validate_python(value, strict=True)
        except ValidationError:
            raise SpecError(f"launch.{name}", value, f"must be {_WORDS[kinds[name]]}") from None
        if name in paths:
            checked[name] = str(file.parent / Path(value).expanduser())
    return checked


def owners() -> dict[str, list[str]]:
    """Return, for each option of a launcher, the launchers that it belongs to."""
    of = {on: kind_of(on).texts() for on in LAUNCHERS}
    return {name: [on for on in of if name in of[on]] for texts in of.values() for name in texts}


def planning() -> list[str]:
    """Return the launchers that can show what they would submit or run."""
    return [on for on in LAUNCHERS if kind_of(on).planned is not None]


def _keys() -> dict[str, str]:
    """Return the key in a table of each option of all plans, by its field."""
    return {name: text.key(name) for name, (_, text) in options_of(LaunchPlan).items()}
