"""The arithmetic that makes a model version from updates, and the versions it keeps in memory.

`work.py` reads files, names them and publishes them in order. The numbers are here. So the
simulator runs `work.py` as it is, and computes digests in the six methods of `Aggregation` that
compute (`downpour_lab/simulated/work.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from downpour.base.errors import FileCorrupt, StoreError, UpdatesRefused
from downpour.base.values import PublishedFile, Update
from downpour.core.scheduler.outputs import Gather, Push
from downpour.core.spec import Spec
from downpour.files import aggregators
from downpour.files.store import Array, Store


def contribution(shard: int, update: Update) -> aggregators.Contribution:
    """Return an update as a rule weighs it."""
    return aggregators.Contribution(
        shard=shard, samples=update.samples, loss=update.loss, file=update.file
    )


class Aggregation:
    """Adds an experiment's updates, for one thread; no sum contains the `arrived` ones yet.

    `outer` is a version with the state of the outer optimizer at it, if only this process has it.
    """

    def __init__(self, spec: Spec, store: Store) -> None:
        self.versions = aggregators.Versions(store)
        self.arrived: dict[int, Gather] = {}
        self.outer: tuple[PublishedFile, Mapping[str, Array]] | None = None
        self._spec = spec
        self._store = store
        self._gathering: aggregators.Gathering | None = None

    def gather(self) -> None:
        """Sum the updates that have arrived, so that less work remains when the last one does.

        Leave unreadable or unusable files to `fold`, which names their shards.
        """
        arrived = list(self.arrived.values())
        self.arrived.clear()
        rule = aggregators.AGGREGATORS[self._spec.aggregate]
        if not isinstance(rule, aggregators.ByAmount) or not arrived:
            return
        model = arrived[-1].model
        added = [contribution(each.shard, each.update) for each in arrived if each.model == model]
        with suppress(StoreError):
            gathering = self._gathering_to(model, arrived[-1].base)
            gathering.add(
                [aggregators.Counted(contribution=each, factor=rule.amount(each)) for each in added]
            )

    def fold(
        self,
        model: PublishedFile,
        began: PublishedFile,
        contributions: Sequence[aggregators.Contribution],
    ) -> tuple[dict[str, Array], Mapping[str, str]]:
        """Fold a round, whose tasks began from `began`; return tensors and a version's metadata."""
        gathering = self._taken_to(model, began)
        rule = aggregators.AGGREGATORS[self._spec.aggregate]
        amount = rule.amount if isinstance(rule, aggregators.ByAmount) else None
        arrays = aggregators.fold(
            self._store,
            model,
            contributions,
            aggregators.weigh(self._spec.aggregate, contributions),
            amounts=[amount(each) for each in contributions] if amount is not None else None,
            compression=self._spec.update_codec,
            trained_from=began,
            gathered=gathering,
        )
        return arrays, gathering.base.metadata

    def check_sole(
        self, model: PublishedFile, began: PublishedFile, contribution: aggregators.Contribution
    ) -> None:
        """Refuse a round's only update if it can't be the next version."""
        base = self._taken_to(model, began).base
        reasons = aggregators.examine(self._store, base, [contribution], known={})
        if reasons:
            raise UpdatesRefused(reasons)

    def mean(
        self, model: PublishedFile, pushes: Sequence[Push]
    ) -> tuple[dict[str, Array], Mapping[str, str]]:
        """Fold the updates of a round, which move `model`; as `fold`."""
        contributions = [contribution(push.shard, push.update) for push in pushes]
        return self.fold(model, pushes[0].base, contributions)

    def moved(
        self, model: PublishedFile, moves: Sequence[aggregators.Move]
    ) -> tuple[dict[str, Array], Mapping[str, str]]:
        """Move the newest version by some updates; as `fold`."""
        arrays = aggregators.moved(self.versions, model, moves, compression=self._spec.update_codec)
        return arrays, self.versions.read(model).metadata

    def outer_step(
        self, base: Mapping[str, Array], arrays: dict[str, Array], state: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Let the outer optimizer change the aggregated arrays; return its state after that."""
        return aggregators.take_step(self._spec.outer, base, arrays, state)

    def outer_at(
        self,
        versions: Sequence[PublishedFile],
        outer: PublishedFile,
        since: Sequence[Sequence[Push]],
    ) -> Mapping[str, Array]:
        """Return the outer optimizer's state at the newest version.

        If an earlier manager had it, compute it from the last published one, `outer`, and the
        updates of each version `since`.
        """
        if self.outer is not None and self.outer[0] == versions[-1]:
            return self.outer[1]
        self.versions.follow(versions)
        state: Mapping[str, Array] = self.versions.read(outer).tensors
        for model, pushes in zip(versions[-1 - len(since) : -1], since, strict=True):
            base = self.versions.read(model)
            self.versions.keep(model, base.tensors, base.metadata)  # the next is a step from it
            try:
                arrays, _ = self.mean(model, pushes)
            except UpdatesRefused as error:  # these shards have no open task, so it would not help
                raise FileCorrupt(outer.name, f"has no successor: {error}") from None
            state = self.outer_step(base.tensors, arrays, state)
            self.versions.forget([model])
        return state

    def own_after(self, model: PublishedFile, move: aggregators.Move) -> Mapping[str, Array]:
        """Return a shard's own parameters after it has met the model."""
        return aggregators.own_after(self.versions, model, move)

    def clear(self) -> None:
        """Free the memory."""
        self._gathering = self.outer = None
        self.arrived.clear()
        self.versions.clear()

    def _taken_to(self, model: PublishedFile, began: PublishedFile) -> aggregators.Gathering:
        gathering = self._gathering_to(model, began)
        self._gathering = None
        self.arrived.clear()
        return gathering

    def _gathering_to(self, model: PublishedFile, began: PublishedFile) -> aggregators.Gathering:
        """Return the sums of the round that moves `model`, or begin them."""
        if self._gathering is None or self._gathering.base.file != model:
            base = self.versions.base_of(model, self._spec.update_codec, began)
            self._gathering = aggregators.Gathering(self._store, base)
        return self._gathering
