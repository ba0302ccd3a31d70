"""`downpour compare-policies ID`: how much time another policy or mode would have saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base.errors import SpecError, did_you_mean
from downpour.cli.policy_trials import progress
from downpour.cli.printing import note, out, print_json
from downpour.host.text import one_line

if TYPE_CHECKING:
    from downpour.cli.asking import FoundRecord


def is_experiment(given: Path) -> bool:
    """Whether this is an experiment's ID rather than a trace file."""
    return len(given.parts) == 1 and given.suffix != ".npz" and not given.exists()


def compare_run(find: Callable[[], FoundRecord], options: Mapping[str, Any]) -> None:
    """Simulate an experiment under its own policy and mode and all others, and print the times.

    Args:
        find: finds the experiment, after we have checked the options.
        options: the command's options, by name.

    Raises:
        SpecError: the experiment has no finished round, only one worker trained it, or a name is
            not a policy or mode that it could have used.
    """
    from downpour.predictor import make, read_trained
    from downpour.virtual.policylab.recorded import RecordedRun
    from downpour.virtual.policylab.rerun import rerun, tactics_for
    from downpour.virtual.policylab.rerun_table import (
        rerun_csv,
        rerun_remarks,
        rerun_rows,
        rerun_table,
    )

    names = _names(options["policies"])
    found = find()
    run = RecordedRun.of(found.experiment, found.record)
    trained = read_trained()
    predictor = None if options["blind"] else lambda: make("selector", trained)
    tactics, reruns = tactics_for(run, names), []
    with progress(len(tactics) * run.rounds) as begin:
        for tactic in tactics:
            show = begin(tactic.policy, tactic.mode)
            reruns.append(rerun(run, tactic, predictor, show, options["seed"]))
    rows = rerun_rows(run, reruns)
    if options["as_json"]:
        print_json(rows)
    elif options["as_csv"]:
        print(rerun_csv(rows), end="")  # noqa: T201 - for programs: no wrapping, no color
    else:
        out().print(rerun_table(run, rows))
    for remark in rerun_remarks(run, reruns[0]):
        note(one_line(remark))


def _names(words: str) -> tuple[str, ...]:
    from downpour.core.families import MODES, POLICIES

    known = [*POLICIES, *MODES]
    names = tuple(word.strip() for word in words.split(",")) if words else ()
    for name in names:
        if name not in known:
            accepted = f"must be of {', '.join(known)}"
            raise SpecError("policies", name, accepted + did_you_mean(name, known))
    return names
