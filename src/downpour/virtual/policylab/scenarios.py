"""The conditions under which we compare policies, by scenario: recorded and synthetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from downpour.base.errors import SpecError, did_you_mean
from downpour.virtual.policylab.conditions import Conditions, Memoryless, OneStraggler
from downpour.virtual.policylab.traced import Recording, TracedJob

Make = Callable[..., Conditions]

WHEN = {"straggler-early": 0.1, "straggler-middle": 0.5, "straggler-late": 0.8}
"""The share of a round after which one host is slow."""

MADE_UP: dict[str, Make] = {
    "one-straggler": partial(OneStraggler, from_share=0.0),
    **{name: partial(OneStraggler, from_share=share, called=name) for name, share in WHEN.items()},
    "memoryless": Memoryless,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How many jobs of each scenario to use, how many rounds of each job, and how many standbys."""

    jobs: int
    rounds: int
    standbys: int
    seed: int = 0


def scenarios_of(recordings: Sequence[Recording]) -> list[str]:
    """Return the names of all scenarios, beginning with those of the trace."""
    return [*dict.fromkeys(recording.scenario for recording in recordings), *MADE_UP]


def conditions_of(
    recordings: Sequence[Recording], scenario: str, choice: Choice
) -> list[Conditions]:
    """Return the jobs of a scenario; if it has too many, pick evenly spread ones.

    Raises:
        SpecError: the scenario doesn't exist, or there are more standbys than workers.
    """
    hosts = min(recording.workers for recording in recordings)
    if not 0 <= choice.standbys <= hosts:
        raise SpecError(
            "standbys", choice.standbys, f"must be from 0 to {hosts}, the workers of the trace"
        )
    if scenario in MADE_UP:
        return [
            MADE_UP[scenario](
                seed=choice.seed + number,
                rounds=choice.rounds,
                hosts=hosts,
                standbys=choice.standbys,
            )
            for number in range(choice.jobs)
        ]
    matching = [recording for recording in recordings if recording.scenario == scenario]
    if not matching:
        known = scenarios_of(recordings)
        accepted = f"must be of {', '.join(known)}{did_you_mean(scenario, known)}"
        raise SpecError("scenario", scenario, accepted)
    return [
        TracedJob(
            recording,
            [other for other in matching if other is not recording],
            standbys=choice.standbys,
            seed=choice.seed,
            rounds=choice.rounds,
        )
        for recording in _spread(matching, choice.jobs)
    ]


def _spread(recordings: Sequence[Recording], count: int) -> list[Recording]:
    """Return `count` recordings, evenly spread, with the first and the last if there are two."""
    if count >= len(recordings):
        return list(recordings)
    step = (len(recordings) - 1) / max(1, count - 1)
    return [recordings[round(step * place)] for place in range(count)]
