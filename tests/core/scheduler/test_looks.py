"""How often a policy looks at a round."""

from hypothesis import example, given
from hypothesis import strategies as st

from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.round_view import between_looks
from downpour.core.stragglers.base import POLICIES, Action, Decide, Handoff, Policy, RoundView
from downpour.core.stragglers.outlook import Outlook
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler import make
from tests.core.stragglers.rounds import round_of, running


def test_where_many_train_a_policy_is_not_asked_after_each_event() -> None:
    """Each look costs time for every task: after every event, a round would cost their square.

    Of a crowd that publishes within a tenth of a second, the policy hears once; a few
    workers are looked at after each update but the last, which ends the round.
    """
    for workers, heard in ((8, 7), (200, 1)):
        crowd = Crowd(workers, shards=workers)
        crowd.all_publish()
        assert len(crowd.looks) == heard


def test_between_two_looks_a_free_worker_gets_the_next_shard() -> None:
    """Where a policy says how; one that does not is asked in full whenever a worker is free."""
    for between, heard in ((pair, 1), (None, 200)):
        crowd = Crowd(200, shards=400, between=between)
        crowd.all_publish()
        assert len(crowd.looks) == heard
        assert crowd.assigned == [(shard, f"w{shard % 200}") for shard in range(400)]


def test_a_worker_that_a_shard_is_handed_over_to_is_kept_free() -> None:
    """It would have to finish another shard first, and the move would be for nothing.

    So it is at each look, and between two looks at a crowd.
    """
    for workers in (8, 200):
        crowd = Crowd(workers, shards=400, between=pair)
        crowd.moves = [Handoff(shard=0, worker="w0", meant_for="w1", reason="")]
        crowd.publish(workers - 1)
        crowd.publish(1)
        crowd.publish(2)
        assert [worker for _, worker in crowd.assigned[workers:]] == [f"w{workers - 1}", "w2"]


@example(published=[0.0, 0.0, 0.0, 9.0], shares=[])
@example(published=[1.0, 9.0], shares=[0.1])
@given(
    published=st.lists(st.sampled_from([0.0, 1.0, 3.0, 4.0, 9.0]), max_size=9),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.9]), max_size=4),
)
def test_heartbeats_lead_to_a_look_in_each_twentieth_of_a_usual_task(
    published: list[float], shares: list[float]
) -> None:
    """At most ten and at least two a second; many updates alone may show that it is the most."""
    tasks = [running(f"w{shard}", shard, done) for shard, done in enumerate(shares)]
    view = round_of(tasks, published=published)
    usual = Outlook(view).typical_seconds or 0.0
    assert between_looks(view) == min(0.5, max(0.1, usual / 20))


class Crowd:
    """A round in which all have a shard; at each look the policy pairs, and makes the `moves`."""

    def __init__(self, workers: int, shards: int, between: Decide | None = None) -> None:
        self.looks: list[float] = []
        self.moves: list[Action] = []
        self.assigned: list[tuple[int, str]] = []
        self._workers = workers
        watching = Policy(decide=self._decide, watches=True, between=between)
        self._core = Scheduler(policies={**POLICIES, "wait": watching})
        for number in range(workers):
            self._happen(on.WorkerJoined(at_seconds=0.0, worker=f"w{number}"))
        spec = make.spec(shards=shards)
        self._happen(on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=spec))
        samples, model = (10,) * shards, make.file("m0")
        self._happen(
            on.Prepared(
                at_seconds=1.0, experiment="one", dataset="d", shard_samples=samples, model=model
            )
        )
        self.looks.clear()

    def all_publish(self) -> None:
        """Let each worker publish its first shard, all within a tenth of a second."""
        for shard in range(self._workers):
            self.publish(shard)

    def publish(self, shard: int) -> None:
        """Let the worker of that number publish the shard of that number."""
        self._happen(
            on.UpdatePublished(
                at_seconds=2.0 + 0.09 * shard / self._workers,
                worker=f"w{shard}",
                attempt=make.attempt("one", 0, shard, 0),
                update=make.update(f"u{shard}"),
            )
        )

    def _happen(self, event: on.Event) -> None:
        for command in self._core.handle(event).commands:
            if isinstance(command, out.Assign):
                self.assigned.append((command.assigned.attempt.shard, command.assigned.worker))

    def _decide(self, view: RoundView) -> list[Action]:
        self.looks.append(view.at_seconds)
        return [*pair(view), *self.moves]
