"""Runs a comparison of policies: its trials, their training, and progress bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.values import small_number
from downpour.cli.printing import err

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downpour.core.spec import Spec
    from downpour.virtual.policylab.comparison import Contender, Settings, Trial
    from downpour.virtual.policylab.conditions import Conditions
    from downpour.virtual.policylab.scenarios import Choice

Show = Callable[[int], None]
Work = list[tuple["Contender", "Conditions"]]


def contenders_of(policies: str, standbys: int, *, snapshots: bool) -> list[Contender]:
    """Read the policies to compare; a policy that can't use standbys gets none unless asked for."""
    from downpour.virtual.policylab.comparison import contender_of, contenders

    known, chosen = contenders(), []
    for word in policies.split(",") if policies else known:
        name, colon, count = word.strip().partition(":")
        own = small_number(count)
        if name not in known or (colon and own is None):
            accepted = f"must be of {', '.join(known)}, each optionally with :N for N standbys"
            raise SpecError("policies", word, accepted + did_you_mean(name, known))
        chosen.append(contender_of(name, standbys, own, snapshots=snapshots))
    return chosen


def choice_of(
    contenders: Sequence[Contender], *, jobs: int, rounds: int, standbys: int, seed: int
) -> Choice:
    """Choose the jobs for the comparison; they have enough machines for every contender."""
    from downpour.virtual.policylab.scenarios import Choice

    wished = [standbys, *(contender.standbys for contender in contenders)]
    most = min(wished) if standbys < 0 else max(wished)
    return Choice(jobs=jobs, rounds=rounds, standbys=most, seed=seed)


def work_of(traces: Path, words: str, contenders: Sequence[Contender], choice: Choice) -> Work:
    """Pair each contender with each job, scenario by scenario."""
    from downpour.virtual.policylab.scenarios import conditions_of, scenarios_of
    from downpour.virtual.policylab.traced import read_recordings

    recordings = read_recordings(traces)
    names = words.split(",") if words else scenarios_of(recordings)
    conditions = [one for name in names for one in conditions_of(recordings, name.strip(), choice)]
    return [(contender, one) for one in conditions for contender in contenders]


def run_trials(work: Work, settings: Settings, *, blind: bool) -> list[Trial]:
    """Try each contender in its conditions; `blind` withholds forecasts."""
    from downpour.predictor import make, read_trained
    from downpour.virtual.policylab.comparison import run_trial

    trained = read_trained()
    predictor = None if blind else lambda: make("selector", trained)
    trials = []
    with progress(sum(conditions.rounds for _, conditions in work)) as begin:
        for contender, conditions in work:
            show = begin(contender.name, conditions.name)
            trials.append(run_trial(contender, conditions, settings, predictor, show))
    return trials


def experiment_of(path: Path | None, data_dir: Path | None) -> Spec | None:
    """Read the spec to train, and check its dataset before the comparison runs for minutes."""
    from downpour.files.spec_file import read_spec
    from downpour.learning.tasks import check_named

    if path is None:
        return None
    spec = read_spec(path)
    check_named(spec, data_dir)
    return spec


def train_trials(trials: list[Trial], spec: Spec | None, data_dir: Path | None) -> list[Trial]:
    """Train with the shards that counted in each trial, if there is a spec."""
    from downpour.virtual.policylab.learning import Learning

    if spec is None:
        return trials
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


def progress(total: int) -> AbstractContextManager[Callable[[str, str], Show]]:
    """Show the share of finished rounds; each run reports its own share."""
    from rich.progress import Progress

    @contextmanager
    def shown() -> Iterator[Callable[[str, str], Show]]:
        before = 0
        latest = 0
        with Progress(console=err(), disable=not err().is_terminal, transient=True) as bars:
            bar = bars.add_task("rounds", total=total)

            def begin(policy: str, job: str) -> Show:
                nonlocal before, latest
                before += latest
                latest = 0
                bars.update(bar, description=f"{policy}, {job}")

                def show(rounds: int) -> None:
                    nonlocal latest
                    latest = rounds
                    bars.update(bar, completed=before + rounds)

                return show

            yield begin

    return shown()
