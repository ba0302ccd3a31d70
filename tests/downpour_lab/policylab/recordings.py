"""Runs whose truth is known: the simulator trains on given machines, and keeps the record."""

from random import Random

from downpour.record.record_lines import RecordLine
from downpour_lab.policylab.conditions import Curve
from downpour_lab.policylab.recorded import Absence, RecordedRun, RecordedWorker
from downpour_lab.policylab.rerun import RecordedMachines, RerunWatch, Tactic, plan_of_rerun
from downpour_lab.trials.striking import Cluster
from tests.specs import plain_spec

TASK_SECONDS = 10.0
SLOWER = 4.0
_NOISE = 0.05
_SPELL_SECONDS = 100.0


def machines(
    workers: int = 5, rounds: int = 8, *, spells: bool = False, absent: Absence | None = None
) -> RecordedRun:
    """Return machines of which the first is four times slower, as a run that one could record.

    Every second, a speed varies by five percent. With `spells`, each machine in turn is the slow
    one, for 100 s. The last may be `absent`.
    """
    made = []
    for number in range(workers):
        draw, seconds, done = Random(f"machine {number}"), [0.0], [0.0]
        while seconds[-1] < rounds * SLOWER * TASK_SECONDS:
            turn = int(seconds[-1] // _SPELL_SECONDS) % workers if spells else 0
            slower = SLOWER if number == turn else 1.0
            seconds.append(seconds[-1] + 1.0)
            done.append(done[-1] + draw.lognormvariate(0.0, _NOISE) / TASK_SECONDS / slower)
        away = (absent,) if absent is not None and number == workers - 1 else ()
        made.append(
            RecordedWorker(
                name=f"host-{number}",
                curve=Curve(seconds, done),
                first_load_seconds=0.0,
                load_seconds=0.0,
                finish_seconds=0.0,
                absences=away,
            )
        )
    return RecordedRun(
        experiment="truth",
        spec=plain_spec(shards=workers, epochs=rounds, snapshot_every=2.5),
        rounds=rounds,
        seconds=rounds * SLOWER * TASK_SECONDS,
        sizes=(1.0,) * workers,
        workers=tuple(made),
        between_seconds=0.3,
        saving_seconds=0.0,
        failed=0,
    )


def recorded(run: RecordedRun, tactic: Tactic) -> list[tuple[float, RecordLine]]:
    """Return the record of a simulated cluster on a run's machines, without forecasts."""
    watch = RerunWatch(run)
    cluster = Cluster(
        plan_of_rerun(run, tactic, 0),
        lambda _: watch,
        lambda _: None,
        machines=RecordedMachines(run),
    )
    cluster.begin()
    while not watch.ended:
        assert cluster.clock.step()
    assert not watch.failure
    return sorted(cluster.disk.record("recorded"), key=lambda line: line[0])
