"""One experiment as the scheduler sees it: its rounds, its model versions, what is outstanding."""

from __future__ import annotations

from downpour.scheduler.lifecycle import EXPERIMENT, Lifecycle
from downpour.scheduler.round import Round
from downpour.spec import Spec
from downpour.values import Evaluation, PublishedFile

EVALUATIONS_AHEAD = 1
"""Rounds that may be trained while the evaluation of an earlier one is still running."""


class Experiment:
    """A submitted spec and how far it has come; holds names of files, never tensors."""

    def __init__(self, name: str, spec: Spec) -> None:
        self.name = name
        self.spec = spec
        self.life = Lifecycle(f"experiment {name}", EXPERIMENT, "waiting")
        self.shard_samples: tuple[int, ...] = ()
        self.round: Round | None = None
        self.rounds_done = 0
        self.models: list[PublishedFile] = []
        self.optimizer_states: dict[int, PublishedFile] = {}
        self.evaluating: dict[int, PublishedFile] = {}
        self.publishing = False
        self.last_evaluation: Evaluation | None = None
        self.result: PublishedFile | None = None
        self.reason = ""
        self.asked_wrongly = False

    @property
    def model(self) -> PublishedFile:
        """The newest model version."""
        return self.models[-1]

    @property
    def training_is_done(self) -> bool:
        """Whether the last round has been aggregated."""
        return self.rounds_done >= self.spec.epochs

    @property
    def may_start_round(self) -> bool:
        """Whether the next round may begin: not too far ahead of the evaluations."""
        return not self.training_is_done and len(self.evaluating) <= EVALUATIONS_AHEAD

    def start_round(self) -> Round:
        """Begin the next round."""
        self.round = Round(self.name, self.rounds_done, self.shard_samples)
        return self.round

    def wants_evaluation(self, round_number: int) -> bool:
        """Whether the spec asks how good this round's model is; the last round's always counts."""
        every = self.spec.evaluate_every
        last = round_number == self.spec.epochs - 1
        return every > 0 and (last or (round_number + 1) % every == 0)

    def spent_models(self) -> tuple[PublishedFile, ...]:
        """Take out the model versions that are neither kept nor being evaluated."""
        needed = {file.name for file in self.evaluating.values()}
        older = self.models[: -self.spec.keep_models]
        spent = tuple(file for file in older if file.name not in needed)
        self.models = [file for file in self.models if file not in spent]
        return spent
