"""What goes on now, and its bars of progress, as they look in a terminal of 80 columns."""

import dataclasses
import io
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from downpour.base.states import ExperimentState, TaskState, WorkerState
from downpour.base.values import AttemptId, Forecast, SystemState
from downpour.network.rpc.messages import (
    ExperimentSummary,
    Metric,
    Status,
    TaskStatus,
    WorkerStatus,
)
from downpour.show.tables.live import ProgressDisplay, experiments_table, status_view
from tests.show.terminal import rendered

RECORDED = Path(__file__).parents[2] / "recorded"
WHY = "it would take 48.7 s longer than all of the others"
BUSY = SystemState(cpu_others=0.25, load_average=1.0, memory_used=0.5, io_wait=0.0)
RUNNING = ExperimentSummary(
    experiment="digits-20260102-030405-ab12",
    name="digits",
    state=ExperimentState.RUNNING,
    rounds_done=2,
    rounds_total=15,
    metrics=(Metric(name="accuracy", value=0.9182),),
)


def worker(name: str, shard: int | None = None, **fields: object) -> WorkerStatus:
    """Make a worker, busy where a shard is given."""
    running = AttemptId(experiment=RUNNING.experiment, round=2, shard=shard or 0, attempt=0)
    made = WorkerStatus(
        worker=name,
        address="172.18.0.12:40123",
        state=WorkerState.IDLE if shard is None else WorkerState.BUSY,
        running=None if shard is None else running,
        system=BUSY,
        tasks_done=7,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def task(shard: int, state: TaskState, who: str | None = None, done: int = 0) -> TaskStatus:
    """Make a task of sixty steps."""
    return TaskStatus(
        shard=shard, state=state, worker=who, steps_done=done, steps_total=60, elapsed_seconds=1.25
    )


STATUS = Status(
    change=9,
    workers=(worker("first", 1), worker("second", 2), worker("[red]third", system=None)),
    experiment=RUNNING,
    tasks=(
        task(0, TaskState.PUBLISHED),
        task(1, TaskState.RUNNING, "first", 30),
        task(2, TaskState.RUNNING, "second"),
    ),
)


def foreseen(one: TaskStatus, seconds: float, slowness: float) -> TaskStatus:
    """Predict that a task takes about so long."""
    band = Forecast(q10=0.9 * seconds, q50=seconds, q90=1.25 * seconds, q98=2 * seconds)
    return dataclasses.replace(one, predicted=band, slowness=slowness)


STRAGGLING = Status(
    change=9,
    workers=(
        worker("4f1c9a7be210-ab12", 1),
        worker("second", 2, slowness=1.1),
        worker("third", 3, slowness=2.4),
        worker("fourth", slowness=1.4),
    ),
    experiment=RUNNING,
    tasks=(
        foreseen(task(1, TaskState.RUNNING, "4f1c9a7be210-ab12", 30), 4.5, 1.0),
        foreseen(task(2, TaskState.RUNNING, "second", 3), 61.2, 4.9),
        task(3, TaskState.RUNNING, "third"),
    ),
    decisions=tuple(f"{n}.5 s, epoch {n}: shard 2 from second to fourth: {WHY}" for n in range(9)),
)


def test_rounds_are_shown_where_an_epoch_has_several() -> None:
    """The epoch first, because users count in epochs; lists have no room for more."""
    several = dataclasses.replace(RUNNING, rounds_total=150, epochs_done=0, epochs_total=15)
    said = rendered(status_view(dataclasses.replace(STATUS, experiment=several)))
    assert "epoch 1 of 15, round 3 of 150" in said
    assert "0/15" in rendered(experiments_table([several]))


def test_a_status_looks_as_agreed() -> None:
    """The experiment in two lines, each worker in one; a name is text, never markup."""
    assert rendered(status_view(STATUS)) == (RECORDED / "status.txt").read_text(encoding="utf-8")


def test_where_each_worker_trains_is_shown_longer_than_its_process() -> None:
    """A card by its number; a manager of an earlier version tells of none."""
    workers = (worker("first", 1, device="cuda:1"), worker("second", device="cpu"))
    said = rendered(status_view(dataclasses.replace(STATUS, workers=workers)))
    rows = [line.split() for line in said.splitlines()]
    head = next(row for row in rows if "device" in row)
    assert head[:2] == ["worker", "device"]
    assert [row[1] for row in rows if row and row[0] in {"first", "second"}] == ["cuda:1", "cpu"]
    assert "device" not in rendered(status_view(STATUS))


def test_accelerators_without_a_worker_are_counted() -> None:
    """Of all machines; two workers may share one, and a worker on the processor takes none."""
    workers = (
        worker("first", device="cuda:0", hostname="a", cards=4),
        worker("second", device="cuda:0", hostname="a", cards=4),
        worker("third", device="cuda:1", hostname="a", cards=4),
        worker("fourth", device="cpu", hostname="b", cards=1),
        worker("fifth", device="cuda", hostname="c", cards=1),
    )
    status = dataclasses.replace(STATUS, workers=workers)
    assert "3 of 6 accelerators have no worker" in rendered(status_view(status))
    busy = dataclasses.replace(STATUS, workers=workers[4:])
    assert "accelerators" not in rendered(status_view(busy))


@pytest.mark.parametrize(
    ("steps", "moved_bytes", "update_bytes", "words"),
    [
        ((0, 0), 0, 4 * 10**8, "loading"),
        ((0, 0), 12 * 10**7, 4 * 10**8, "loading 120 MB"),
        ((30, 60), 0, 4 * 10**8, "━━━━━━"),
        ((30, 60), 12 * 10**7, 4 * 10**8, "saving 120 MB"),
        ((60, 60), 0, 4 * 10**8, "publishing"),
        ((60, 60), 12 * 10**7, 0, "publishing 120 MB"),
        ((60, 60), 12 * 10**7, 4 * 10**8, "publishing 120 of 400 MB"),
        ((60, 60), 5 * 10**8, 4 * 10**8, "publishing 500 MB"),
    ],
)
def test_a_worker_that_does_not_train_says_what_it_does(
    steps: tuple[int, int], moved_bytes: int, update_bytes: int, words: str
) -> None:
    """In place of the bar, which would stand still; of a bucket's files, no bytes are known."""
    done, total = steps
    one = dataclasses.replace(
        task(1, TaskState.RUNNING, "first", done),
        steps_total=total,
        moved_bytes=moved_bytes,
        update_bytes=update_bytes,
    )
    lines = rendered(status_view(dataclasses.replace(STATUS, tasks=(one,)))).splitlines()
    (row,) = [line for line in lines if line.startswith("first")]
    assert f" shard 1  {words}  " in row


def test_stragglers_look_as_agreed() -> None:
    """Who is slow, now or else of late, what is predicted, and what was done, in 80 columns."""
    shown = rendered(status_view(STRAGGLING))
    assert shown == (RECORDED / "stragglers.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [46, 60, 80, 100, 200])
def test_who_is_slow_is_said_in_any_width(width: int) -> None:
    """In a word, not in colour alone; on a narrow screen only decisions are cut."""
    lines = rendered(status_view(STRAGGLING), width=width).splitlines()
    assert max(map(len, lines)) <= width
    table = [line for line in lines if line.startswith(("4f1c", "second", "third", "fourth"))]
    assert ["slow" in line for line in table] == [False, True, True, False]
    assert not any("…" in line for line in table)
    assert sum("epoch" in line and "from second" in line for line in lines) == 5


def test_what_each_worker_contributes_is_said_in_words() -> None:
    """Also of one that stands by; nothing where nothing is known, and no column if that is all."""
    workers = (
        worker("first", 1, saves=0.238),
        worker("second", 2, saves=-0.061),
        worker("third", saves=-0.034, stands_by=True),
        worker("fourth", saves=-0.001, stands_by=True),
        worker("fifth", saves=-0.004),
        worker("sixth"),
    )
    lines = rendered(
        status_view(dataclasses.replace(STATUS, workers=workers)), width=120
    ).splitlines()
    said = {line.split()[0]: line for line in lines if line.split()[:1] and "172.18" in line}
    assert "saves 24%" in said["first"]
    assert "costs 6%" in said["second"]
    assert "would cost 3%" in said["third"]
    assert "stands by" in said["fourth"]
    assert "saves 0%" in said["fifth"]
    assert "of the" in "".join(lines)
    assert "of the" not in rendered(status_view(STATUS), width=120)


def test_experiments_look_as_agreed() -> None:
    """A line each, and below them, in full, the reasons of those that failed."""
    reason = "split = 'class': needs labels that are classes, and the targets of 'npz' are not"
    listed = [
        dataclasses.replace(RUNNING, experiment="a" * 64, state=ExperimentState.FINISHED),
        dataclasses.replace(RUNNING, state=ExperimentState.FAILED, metrics=(), reason=reason),
        RUNNING,
    ]
    said = rendered(experiments_table(listed))
    assert said == (RECORDED / "experiments.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [50, 60, 80, 200])
def test_a_narrow_terminal_costs_the_addresses_first(width: int) -> None:
    """No line is wider than the terminal, and each worker stays in one."""
    long = dataclasses.replace(STATUS, workers=(worker("4f1c9a7be210-ab12", 1), worker("b", 2)))
    lines = rendered(status_view(long), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert ("172.18.0.12:40123" in lines[-1]) == (width >= 80)


def test_nothing_to_show_is_said() -> None:
    """An empty manager is no empty screen."""
    empty = rendered(status_view(Status(change=0)))
    assert empty == "no experiment is active; `downpour list` shows all\n\nno workers now\n"
    assert rendered(experiments_table([])) == "no experiments yet\n"


def test_many_workers_are_cut() -> None:
    """A screenful, and how many more there are."""
    crowd = Status(change=1, workers=tuple(worker(f"w{n}") for n in range(100)))
    lines = rendered(status_view(crowd)).splitlines()
    assert len(lines) < 50
    assert lines[-1] == "… and 60 more"


@pytest.mark.parametrize("state", list(ExperimentState))
def test_every_state_can_be_shown(state: ExperimentState) -> None:
    """An ended one counts its epochs; what failed one, or holds it up, is said."""
    one = dataclasses.replace(RUNNING, state=state, reason="no luck")
    said = rendered(status_view(dataclasses.replace(STATUS, experiment=one)))
    assert f"ab12  {state}\n" in said
    assert ("2 of 15 epochs" in said) == state.ended
    assert "no luck" in said
    assert "ab12: no luck" in rendered(experiments_table([one]))


def test_each_process_can_be_found_and_told_apart() -> None:
    """The manager's and the workers' numbers, and the machines that they are numbers of."""
    shown = dataclasses.replace(
        STATUS, workers=(worker("w", pid=42, hostname="n1"),), pid=7, hostname="n0"
    )
    text = rendered(status_view(shown), width=120)
    assert "manager: process 7 of n0" in text
    assert "42 of n1" in text


def test_workers_with_other_packages_and_without_tasks_are_named() -> None:
    """A line for each difference and for each reason; a status full of them stays readable."""
    first, second, third = STATUS.workers
    old = dataclasses.replace(first, differs=("transformers 4.45, the manager 5.23",))
    bare = dataclasses.replace(second, differs=tuple(f"no p{n}, the manager 1" for n in range(20)))
    wrong = dataclasses.replace(third, unfit_because="it computes wrong")
    said = rendered(status_view(dataclasses.replace(STATUS, workers=(old, bare, wrong))))
    assert "third gets no task: it computes wrong" in said
    assert "first has transformers 4.45, the manager 5.23" in said
    assert "second has no p0, the manager 1" in said
    assert said.count(", the manager") == 9
    assert ", the manager" not in rendered(status_view(STATUS))


WORKER = WorkerStatus(worker="w", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0)


def status(
    state: ExperimentState, done: int = 0, accuracy: float | None = None, **fields: object
) -> Status:
    """Make a status of an experiment of four epochs."""
    experiment = ExperimentSummary(
        experiment="e-1",
        name="e",
        state=state,
        rounds_done=done,
        rounds_total=4,
        metrics=() if accuracy is None else (Metric(name="accuracy", value=accuracy),),
    )
    made: dict[str, object] = {"change": 1, "workers": (WORKER,), "experiment": experiment}
    return Status(**{**made, **fields})  # type: ignore[arg-type]


TASKS = (
    task(0, TaskState.PUBLISHED, done=60),
    task(0, TaskState.RUNNING, done=30),
    task(0, TaskState.PENDING),
)


def shown(*steps: Status, terminal: bool = True) -> str:
    """Show steps one after another; return the last picture, or what a file would hold."""
    file = io.StringIO()
    console = Console(file=file, width=80, color_system=None, force_terminal=terminal)
    with ProgressDisplay(console) as display:
        for step in steps:
            display.show(step)
        picture = rendered(display.bars.get_renderable())
    return picture if terminal else file.getvalue()


@pytest.mark.parametrize(
    ("step", "headline"),
    [
        (Status(change=0), "starting workers"),
        (status(ExperimentState.WAITING), "waiting for its turn"),
        (status(ExperimentState.PREPARING), "preparing the dataset"),
        (status(ExperimentState.RUNNING, workers=()), "waiting for workers"),
        (status(ExperimentState.RUNNING), "epochs "),
        (status(ExperimentState.RUNNING, 1, 0.5), "epochs, accuracy 50.00%"),
        (status(ExperimentState.FINISHED, 4, 1.0), "epochs, accuracy 100.00%"),
    ],
)
def test_the_headline_says_what_is_waited_for(step: Status, headline: str) -> None:
    """From the first moment to the last."""
    assert headline in shown(step)


def test_epochs_and_shards_are_counted_as_they_are_done() -> None:
    """A shard that is half trained moves its bar, but counts only when it is published."""
    picture = shown(status(ExperimentState.RUNNING, 2, 0.5, tasks=TASKS))
    assert "2/4" in picture
    assert "shards of epoch 3" in picture
    assert "1/3" in picture
    assert max(map(len, picture.splitlines())) <= 80


@pytest.mark.parametrize(
    ("seconds", "others", "words"),
    [
        (9.0, [], "publishing 240 of 800 MB "),
        (9.0, [task(0, TaskState.RUNNING, done=30)], "shards of epoch 3 "),
        (1.0, [], "shards of epoch 3 "),
    ],
)
def test_bars_that_stand_still_say_why(
    seconds: float, others: list[TaskStatus], words: str
) -> None:
    """They do so while no worker trains. Short tasks end before a person could read it."""
    one = replace(
        task(0, TaskState.RUNNING, done=60),
        elapsed_seconds=seconds,
        moved_bytes=12 * 10**7,
        update_bytes=4 * 10**8,
    )
    tasks = (TASKS[0], one, one, *others)
    picture = shown(status(ExperimentState.RUNNING, 2, tasks=tasks))
    assert words in picture
    assert max(map(len, picture.splitlines())) <= 80


def test_the_shards_are_shown_only_while_it_runs() -> None:
    """The end has no shards."""
    running = status(ExperimentState.RUNNING, 3, tasks=TASKS)
    ended = status(ExperimentState.FINISHED, 4, tasks=TASKS)
    assert "shards of" in shown(running)
    assert "shards of" not in shown(running, ended)
    assert "4/4" in shown(running, ended)


def test_whoever_writes_to_a_file_gets_no_bars() -> None:
    """Nothing at all is written."""
    assert shown(status(ExperimentState.RUNNING, 2, tasks=TASKS), terminal=False) == ""


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [(0.0, "1/4 epochs, accuracy 50.00%\n3/4 epochs, accuracy 75.00%\n"), (3600.0, "")],
)
def test_a_file_gets_a_line_after_a_round_if_it_is_asked_for(seconds: float, lines: str) -> None:
    """A line for a round that is new, at most one in so many seconds, and none for the end."""
    console = Console(file=io.StringIO(), width=80, color_system=None, force_terminal=False)
    with ProgressDisplay(console, line_seconds=seconds) as display:
        display.show(status(ExperimentState.RUNNING, 0))
        for done, accuracy in ((1, 0.5), (1, 0.5), (3, 0.75)):
            display.show(status(ExperimentState.RUNNING, done, accuracy))
        display.show(status(ExperimentState.FINISHED, 4, 1.0))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == lines


def test_a_notebook_shows_bars_that_grow_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One output of the cell, drawn again with each status and empty in the end."""
    drawn: list[str] = []

    class Handle:
        def update(self, shown: RenderableType) -> None:
            """Take what is to be seen from now on."""
            drawn.append(rendered(shown))

    def display(shown: object, *, display_id: bool) -> Handle:
        assert display_id
        assert shown
        return Handle()

    notebook = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with ProgressDisplay(Console(force_jupyter=True)) as display_:
        display_.show(status(ExperimentState.RUNNING, done=1, tasks=TASKS))
        display_.show(status(ExperimentState.RUNNING, done=2, tasks=TASKS))
    assert "1/4" in drawn[0]
    assert "2/4" in drawn[1]
    assert drawn[2].strip() == ""
