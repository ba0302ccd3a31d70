"""`downpour run`: train with a manager and workers that end with the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from downpour.cli.launch_options import DryRun, Launching, with_launcher
from downpour.cli.options import (
    SHARED,
    Allow,
    AsCsv,
    AsJson,
    DataDir,
    Patience,
    Resume,
    Shared,
    TensorBoard,
    allow_code,
    workers_option,
)
from downpour.cli.printing import check_format, err, note, print_result, say, with_spec_shown
from downpour.cli.spec_options import with_spec
from downpour.cluster.launchers import LaunchPlan
from downpour.cluster.manager.options import ManagerOptions
from downpour.core.spec import Spec

Workers = Annotated[
    int | None,
    workers_option(
        "Worker processes; also the number of shards if the spec gives none.",
        show_default="as many as shards, fewer on few cores",
    ),
]


@with_launcher
@with_spec
def run(
    spec: Spec,
    workers: Workers = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    patience: Patience = 1.0,
    tensorboard: TensorBoard = None,
    *,
    allow: Allow = None,
    resume: Resume = None,
    spec_file: Path | None = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    dry_run: DryRun = False,
    launching: Launching,
) -> None:
    """Train with workers of its own.

    The spec comes from FILE, from options, or both; without either, a small network is trained on
    the digits dataset. When training begins, the experiment's ID and the fields that are not the
    defaults are printed.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    allow_code(allow, spec_file)
    if resume is not None:
        spec = _with_code_here(spec)
    from downpour.core.resolve import resolve
    from downpour.experiments import api
    from downpour.experiments.tables.progress import ProgressDisplay

    workers = api.workers_for(spec, workers)
    if not dry_run:
        spec = api.inside_measured(
            spec, workers, shared=shared, data_dir=data_dir, on=launching.on, tell=note
        )
    resolved = resolve(spec, workers)
    if dry_run:
        plan = ManagerOptions(shared=str(shared.absolute()), embedded=True)
        text = launching.shown(LaunchPlan(plan, workers, threads=spec.threads, device=spec.device))
        for line in text.splitlines():
            say(line)
        return
    for_people = not (as_json or as_csv)
    with ProgressDisplay(err()) as display:
        result = api.run_resolved(
            resolved,
            workers,
            shared=shared,
            data_dir=data_dir,
            patience=patience,
            on_status=with_spec_shown(resolved, display.show) if for_people else display.show,
            progress=False,
            tensorboard=tensorboard,
            on=launching.launcher,
        )
    print_result(result, as_json=as_json, as_csv=as_csv)


def _with_code_here(spec: Spec) -> Spec:
    """Let an experiment that is resumed have the code that is here, and note what has changed."""
    from downpour.learning.factory_code import fixed_code

    code = fixed_code(spec.factories, {})
    for file in sorted(spec.code.keys() | code.keys()):
        if spec.code.get(file) != code.get(file):
            note(f"{file} is not the one that it was trained with")
    return spec.replace(code=code)
