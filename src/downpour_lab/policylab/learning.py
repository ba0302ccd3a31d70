"""Trains models from simulated rounds, to measure a policy's cost in accuracy.

A model depends only on the shards that a round dropped or trained partly, and on how the round was
cut. Which worker trained what, and when, does not matter. So one training serves all policies that
drop nothing. We don't train codes and oracles, because they count no updates of shards.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.base.names import AUTO
from downpour.base.states import Evaluation
from downpour.base.values import AttemptId
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.core.splitters import divide
from downpour.files.aggregators import Contribution, first_state, fold, take_step, weigh
from downpour.files.store import WHOLE, SharedDirectory, Work, encode, layout, publish_work
from downpour.learning.auto import trainer_of
from downpour.learning.tasks.agreement import open_data, prepare_data
from downpour.learning.tasks.loaded import load
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import buffers_of, load_parameters, parameters_of
from downpour_lab.policylab.ledger import RoundOutcome

_NAME = "learning"

Arrays = Mapping[str, NDArray[Any]]
Indices = NDArray[np.integer[Any]]
Pattern = tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]], ...]


class Learning:
    """An experiment that we train in this process, once for each pattern of counted work.

    `folder` is empty and temporary.
    """

    def __init__(self, spec: Spec, shards: int, folder: Path, data_dir: Path | None = None) -> None:
        if spec.compression != WHOLE:
            accepted = "must be none, because the comparison of policies uses whole updates"
            raise SpecError("compression", spec.compression, accepted)
        if spec.overlap:
            accepted = (
                "must be 0, because the comparison of policies uses rounds that begin together"
            )
            raise SpecError("overlap", spec.overlap, accepted)
        alone = spec.replace(
            shards=shards,
            policy="wait",
            policy_options={},
            standbys=0,
            meet=1 if spec.meet == AUTO else spec.meet,  # a round as long as a recorded one
        )
        self._spec = resolve(alone, shards, trainer=trainer_of(alone, shards, apart=False))
        shared = SharedDirectory.open(folder, create=True)
        self._store = shared.create_experiment(_NAME)
        key = prepare_data(self._spec, shared.datasets, data_dir)
        data = open_data(self._spec, shared.datasets, key)
        count = data.facts.train_samples
        self._shards, _ = divide(spec, data.labels, count, shards)
        torch.set_num_threads(spec.threads)
        self._task = load(self._spec, data)
        self._network = self._task.network()
        self._task.check_fit(self._network)
        self._first = parameters_of(self._network, copy=True)
        self._trained_names = self._first.keys() - set(buffers_of(self._network))
        self._evaluations: dict[Pattern, Evaluation] = {}

    def evaluation(
        self, rounds: Sequence[RoundOutcome], show: Callable[[int], None] = lambda _: None
    ) -> Evaluation:
        """Return the evaluation of the model after these rounds."""
        pattern = tuple((each.dropped, each.sizes, each.shares) for each in rounds)
        if pattern not in self._evaluations:
            self._evaluations[pattern] = self._learn(pattern, show)
        show(len(rounds))
        return self._evaluations[pattern]

    def _learn(self, pattern: Pattern, show: Callable[[int], None]) -> Evaluation:
        parameters = evaluated = self._first
        spec = self._spec.outer
        outer: Arrays = {}
        if spec.keeps_state:
            outer = first_state(spec, self._first, self._trained_names)
        states: dict[int, Arrays] = {}
        for number, (dropped, sizes, shares) in enumerate(pattern):
            there = [
                LocalTask(
                    indices=indices,
                    round=number,
                    shard=shard,
                    share=shares[shard] if shares else 1.0,
                )
                for shard, indices in enumerate(self._cut(sizes))
                if shard not in dropped
            ]
            after = self._round(number, there, parameters, states)
            evaluated = after
            if self._spec.looks_ahead:  # the step changes the mean in place
                evaluated = {name: array.copy() for name, array in after.items()}
            if outer:
                outer = take_step(spec, parameters, after, outer)
            parameters = after
            show(number + 1)
        load_parameters(self._network, evaluated)
        return evaluate(self._network, self._task)

    def _cut(self, sizes: tuple[int, ...]) -> list[Indices]:
        """Return the shards, or all examples in order, cut into parts of these sizes."""
        if not sizes:
            return list(self._shards)
        whole = np.concatenate(self._shards)
        ends = [round(end * len(whole) / sum(sizes)) for end in accumulate(sizes, initial=0)]
        return [whole[begin:end] for begin, end in pairwise(ends)]

    def _round(
        self, number: int, there: Sequence[LocalTask], parameters: Arrays, states: dict[int, Arrays]
    ) -> dict[str, NDArray[Any]]:
        contributions = list(self._trained(number, there, parameters, states))
        weights = weigh(self._spec.aggregate, contributions)
        name = str(layout.ModelName(number, secrets.token_hex(3)))
        model = self._store.put_new(name, encode(parameters, {}))
        folded = fold(self._store, model, contributions, weights)
        for file in (model, *(contribution.file for contribution in contributions)):
            self._store.delete(file.name)
        return folded

    def _trained(
        self, number: int, there: Sequence[LocalTask], parameters: Arrays, states: dict[int, Arrays]
    ) -> Iterator[Contribution]:
        keeps = self._spec.optimizer_state == "keep"
        for task in there:
            shard = task.shard
            load_parameters(self._network, parameters)
            training = ShardTraining(
                self._task, self._network, task, optimizer_state=states.get(shard)
            )
            training.advance(training.steps_total)
            if keeps:
                states[shard] = training.optimizer_state()
            work = Work(
                parameters=training.parameters(copy=False),
                optimizer_state={},
                samples=training.samples,
                steps=training.steps_done,
                loss=training.mean_loss,
            )
            attempt = AttemptId(experiment=_NAME, round=number, shard=shard, attempt=0)
            file, _ = publish_work(self._store, attempt, work)
            yield Contribution(
                shard=shard, samples=training.samples, loss=training.mean_loss, file=file
            )
