"""`downpour compare-policies`: every straggler policy in the same conditions, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from downpour.base import options as base
from downpour.base.errors import SpecError, did_you_mean, one_line, require
from downpour.base.options import argument, flag, option
from downpour.base.values import small_number
from downpour.cli import common
from downpour.cli.asking import find
from downpour.cli.commands import COMPARE, CommandKind
from downpour.cli.common import allow_code, checked_number, command, refuse_both, refuse_unused
from downpour.cli.printing import note, out, print_csv, print_json, progress_bar
from downpour.cli.showing import check_figure, write_figure
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from rich.table import Table

    from downpour.core.spec import Spec
    from downpour_lab.policylab.comparison import Contender, Settings, Trial
    from downpour_lab.policylab.conditions import Conditions
    from downpour_lab.policylab.tables import Prices


Show = Callable[[int], None]
Work = list[tuple["Contender", "Conditions"]]


def contenders_of(policies: str, standbys: int, *, snapshots: bool) -> list[Contender]:
    """Read the policies to compare; a policy that can't use standbys gets none unless asked for."""
    from downpour_lab.policylab.comparison import contender_of, contenders

    known, chosen = contenders(), []
    for word in policies.split(",") if policies else known:
        name, colon, count = word.strip().partition(":")
        own = small_number(count)
        if name not in known or (colon and own is None):
            accepted = f"must be of {', '.join(known)}, each optionally with :N for N standbys"
            raise SpecError("policies", word, accepted + did_you_mean(name, known))
        chosen.append(contender_of(name, standbys, own, snapshots=snapshots))
    return chosen


def work_of(options: CompareOptions, contenders: Sequence[Contender]) -> Work:
    """Pair each contender with each job; the jobs have enough machines for every contender."""
    from downpour_lab.policylab.conditions import conditions_of, read_recordings, scenarios_of

    wished = [options.standbys, *(contender.standbys for contender in contenders)]
    most = min(wished) if options.standbys < 0 else max(wished)
    wanted = partial(
        conditions_of, jobs=options.jobs, rounds=options.rounds, standbys=most, seed=options.seed
    )
    recordings = read_recordings(options.traces)
    names = options.scenarios.split(",") if options.scenarios else scenarios_of(recordings)
    conditions = [one for name in names for one in wanted(recordings, name.strip())]
    return [(contender, one) for one in conditions for contender in contenders]


def run_trials(work: Work, settings: Settings, *, blind: bool) -> list[Trial]:
    """Try each contender in its conditions; `blind` withholds forecasts."""
    from downpour.predictor import pretrained
    from downpour_lab.policylab.comparison import run_trial

    predictor = None if blind else pretrained
    trials = []
    with progress(sum(conditions.rounds for _, conditions in work)) as begin:
        for contender, conditions in work:
            show = begin(contender.name, conditions.name)
            trials.append(run_trial(contender, conditions, settings, predictor, show))
    return trials


def train_trials(trials: list[Trial], spec: Spec, data_dir: Path | None) -> list[Trial]:
    """Train with the shards that counted in each trial."""
    from downpour_lab.policylab.learning import Learning

    rounds = sum(len(trial.rounds) for trial in trials if trial.trainable)
    trained, classes = [], {}
    with TemporaryDirectory(prefix="downpour-") as folder, progress(rounds) as begin:
        for trial in trials:
            if not trial.trainable:
                trained.append(trial)
                continue
            if trial.hosts not in classes:
                here = Path(folder) / str(trial.hosts)
                classes[trial.hosts] = Learning(spec, trial.hosts, here, data_dir)
            show = begin(f"training: {trial.contender.name}", trial.job)
            evaluation = classes[trial.hosts].evaluation(trial.rounds, show)
            trained.append(replace(trial, evaluation=evaluation))
    return trained


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, str], Show]]:
    """Show the share of finished rounds; each run reports its own share."""
    before = latest = 0
    with progress_bar("rounds", total) as show_bar:

        def begin(policy: str, job: str) -> Show:
            nonlocal before, latest
            before, latest = before + latest, 0
            show_bar(description=f"{policy}, {job}")

            def show(rounds: int) -> None:
                nonlocal latest
                latest = rounds
                show_bar(completed=before + rounds)

            return show

        yield begin


def compare_run(options: CompareOptions, credentials: Credentials) -> None:
    """Simulate an experiment under its own policy and mode and all others, and print the times."""
    from downpour.predictor import pretrained
    from downpour_lab.policylab.recorded import RecordedRun
    from downpour_lab.policylab.rerun import (
        rerun,
        rerun_remarks,
        rerun_rows,
        rerun_table,
        tactics_for,
    )

    names = _names(options.policies)
    found = find(str(options.traces), options.shared, options.manager, credentials)
    run = RecordedRun.of(found.experiment, found.record)
    predictor = None if options.blind else pretrained
    tactics, reruns = tactics_for(run, names), []
    with progress(len(tactics) * run.rounds) as begin:
        for tactic in tactics:
            show = begin(tactic.policy, tactic.mode)
            reruns.append(rerun(run, tactic, predictor, show, options.seed))
    rows = rerun_rows(run, reruns)
    _print(rows, [rerun_table(run, rows)], options)
    for remark in rerun_remarks(run, reruns[0]):
        note(one_line(remark))


def _names(words: str) -> tuple[str, ...]:
    from downpour.core.families import MODES, POLICIES

    known = [*POLICIES, *MODES]
    names = tuple(word.strip() for word in words.split(",")) if words else ()
    for name in names:
        if name not in known:
            accepted = f"must be of {', '.join(known)}"
            if name.partition(":")[0] in known:
                accepted = "has no :N, because an ID's workers and standbys are those of its run"
            raise SpecError("policies", name, accepted + did_you_mean(name, known))
    return names


_OF_BOTH = {"traces", "policies", "seed", "blind", "as_json", "as_csv"}
_OF_AN_ID = {"shared", "manager"}
_MANY = 1_000_000


def _count(value: int, text: str) -> Any:
    return option(value, text, "N")


def _amount(value: float, text: str) -> Any:
    return option(value, text, "X", title="Costs")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """The options of `downpour compare-policies`."""

    traces: Path = argument(
        "A trace: an .npz file with a row for each task; traces/README.md lists the columns. Or an "
        "experiment's ID, to see how much time another policy or mode would have saved.",
        "TRACES|ID",
    )
    policies: str = option(
        "",
        "Compare only these: policies or, with an ID, also modes. With a trace, NAME:2 gives a "
        "policy two standbys.",
        "NAME,NAME",
        default="all of them",
    )
    scenarios: str = option(
        "",
        "Only these scenarios: the trace's names, one-straggler, straggler-early, "
        "straggler-middle, straggler-late, memoryless.",
        "NAME,NAME",
        default="all of them",
        flag="--scenario",
    )
    jobs: int = _count(3, "Jobs in each scenario, chosen evenly from those of the trace.")
    rounds: int = _count(50, "Rounds of each job.")
    standbys: int = _count(1, "Standby workers, except for `wait` and the codes.")
    seed: int = _count(0, "The seed of every random choice.")
    heartbeat_seconds: float = option(1.0, "Seconds between a worker's heartbeats.", "X")
    snapshots: bool = flag("Let all policies resume from snapshots, even if they can do without.")
    blind: bool = flag("Give the policies no forecasts.")
    figure: Path | None = option(
        None, "Draw mitigation, lost gradients and extra work into this .png or .svg file.", "FILE"
    )
    spec: Path | None = option(
        None,
        "Also train this spec with the shards that counted in each round, and show its accuracy; "
        "the comparison sets its shards and rounds.",
        "FILE",
    )
    data_dir: Path | None = base.data_dir()
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()
    as_csv: bool = flag("Print CSV, a row for each policy and job.", flag="--csv")
    moving: float = _amount(0.01, "Cost of a hand-over, as a share of the median task.")
    saving: float = _amount(0.002, "Cost of a snapshot, as a share of the median task.")
    price: float = _amount(1.0, "Price of a node for an hour.")
    model_mb: float = _amount(5.0, "The model's size in MB.")
    shared: Path | str | None = common.shared_if_seen()
    manager: str = base.manager()


@command
def compare_policies(
    context: typer.Context, options: CompareOptions, credentials: Credentials
) -> None:
    """Compare straggler policies in the same conditions.

    The scheduler, manager and workers are those of `downpour simulate`, in virtual time. Each
    worker's speed comes from a trace or from a synthetic scenario. Mitigation is the share of the
    time lost to stragglers that a policy saves: `wait` saves 0 %, and at 100 % a round takes as
    long as its median task. Means are over jobs, with 95 % intervals.

    With the ID of one of your experiments, workers are as fast as its record says they were. The
    table shows how long the experiment would have taken with each policy and each mode.
    """
    refuse_both(json=options.as_json, csv=options.as_csv)
    traces = options.traces
    if len(traces.parts) == 1 and traces.suffix != ".npz" and not traces.exists():
        of_traces = {each.name for each in fields(options)} - _OF_BOTH - _OF_AN_ID
        refuse_unused(context, of_traces, "is for traces; an ID has its own conditions")
        compare_run(options, credentials)
        return
    refuse_unused(context, _OF_AN_ID, "needs an experiment's ID")
    require("downpour compare-policies", "report")
    from downpour.files.spec_file import read_spec
    from downpour.learning.tasks.agreement import check_named
    from downpour_lab.policylab.comparison import Settings
    from downpour_lab.policylab.tables import Prices, policy_figure, rows_of

    _check_files(context, options)
    _check_numbers(options)
    settings = Settings(
        saving=options.saving,
        moving=options.moving,
        heartbeat_seconds=options.heartbeat_seconds,
        seed=options.seed,
    )
    contenders = contenders_of(options.policies, options.standbys, snapshots=options.snapshots)
    work = work_of(options, contenders)
    spec = None if options.spec is None else read_spec(options.spec)
    if spec is not None:  # now, because the comparison runs for minutes
        check_named(spec, options.data_dir)
    trials = run_trials(work, settings, blind=options.blind)
    if spec is not None:
        trials = train_trials(trials, spec, options.data_dir)
    prices = Prices(node_hour=options.price, model_mb=options.model_mb)
    _print(rows_of(trials, prices), _tables(trials, prices), options)
    if options.figure is not None:
        write_figure("figure", options.figure, policy_figure(trials))
        note(f"drawn: {options.figure}")


def _print(rows: list[dict[str, Any]], tables: Iterable[Table], options: CompareOptions) -> None:
    if options.as_json:
        print_json(rows)
    elif options.as_csv:
        print_csv(rows)
    else:
        for table in tables:
            out().print(table)


def _tables(trials: list[Trial], prices: Prices) -> Iterator[Table]:
    """Yield a table for each scenario, one of the trace's together, and one of the prices."""
    from downpour_lab.policylab.conditions import MADE_UP
    from downpour_lab.policylab.tables import price_table, scenario_table

    names = list(dict.fromkeys(trial.scenario for trial in trials))
    for name in names:
        yield scenario_table(name, [trial for trial in trials if trial.scenario == name])
    traced = [name for name in names if name not in MADE_UP]
    if len(traced) > 1:
        here = [trial for trial in trials if trial.scenario in traced]
        yield scenario_table(", ".join(traced), here)
    yield price_table(trials, prices)


def _check_files(context: typer.Context, options: CompareOptions) -> None:
    """Refuse options that need a spec, a figure that cannot be written, and names of no modules."""
    if options.spec is None:
        refuse_unused(context, {"data_dir", "allow"}, "has no effect without --spec")
    allow_code(options.allow, options.spec)
    check_figure("figure", options.figure)


def _check_numbers(options: CompareOptions) -> None:
    checked_number("jobs", options.jobs, 1, _MANY)
    checked_number("rounds", options.rounds, 1, _MANY)
    checked_number("moving", options.moving, 0, 1)
    checked_number("saving", options.saving, 0, 1)
    checked_number("price", options.price, 0)
    checked_number("model-mb", options.model_mb, 0)
    checked_number("heartbeat-seconds", options.heartbeat_seconds, 0.01)


COMMAND = CommandKind(compare_policies, COMPARE)
