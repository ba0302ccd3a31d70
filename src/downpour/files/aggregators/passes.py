"""The rules that weigh updates, and one pass over some of them: opens, adds, and reports errors.

Every rule is a weighted mean, so it only says how much each contribution counts. Weights are
float64, sum to one, and do not depend on the order of the contributions.

The fold has all updates, and a gathering the arrived ones. Both name their additions by place in a
binary tree over the numbers of shards. Shards 2k and 2k + 1 meet first, then pairs of such pairs,
and so on; the tree skips a missing shard. So the additions follow from the shards alone, and not
from the order in which updates arrive. We can sum any two neighbors as soon as both have arrived.
When the last update arrives, only its path to the root is left. This module does not know the
summed values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from downpour.base.errors import FileCorrupt, SharedDirectoryError, StoreError, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators.additions import Combine, PartialSum, SummedFile
from downpour.files.aggregators.summing import Summing, is_sound
from downpour.files.store import (
    Array,
    ParameterFile,
    Parameters,
    Store,
    UpdateFormat,
    about_model,
    base_of,
    compression_of,
    decode,
    decompressed,
)
from downpour.host.machine import usable_cores
from downpour.host.process import descriptors_allowed, files_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One shard's part in a round: facts about its training, and the file with its parameters.

    `loss` is the sample-weighted mean of the task's batches.
    """

    shard: int
    samples: int
    loss: float
    file: PublishedFile


Weights: TypeAlias = tuple[float, ...]


Aggregator: TypeAlias = Callable[[Sequence[Contribution]], Weights | Combine]
"""A rule for the updates of a round: returns a weight for each contribution, summing to 1, or, as a
`Statistic` does, a function of their numbers."""


def shares(amounts: Sequence[float]) -> tuple[float, ...]:
    """Return each amount divided by their sum; equal shares if all amounts are zero."""
    if not amounts:
        raise ValueError("nothing to aggregate")
    largest = max(amounts)
    if largest == 0:
        return (1 / len(amounts),) * len(amounts)
    # Scale by the largest first, so that the sum of huge amounts stays finite.
    total = math.fsum(amount / largest for amount in amounts)
    return tuple(amount / largest / total for amount in amounts)


@dataclass(frozen=True, slots=True)
class ByAmount:
    """An aggregator whose weights are shares of amounts.

    We know the `amount` of a contribution without the others, so we can sum updates as they arrive.
    The other rules read all updates at the end.
    """

    amount: Callable[[Contribution], float]

    def __call__(self, contributions: Sequence[Contribution]) -> tuple[float, ...]:
        """Return each amount's share of all."""
        return shares([self.amount(contribution) for contribution in contributions])


AVERAGE = ByAmount(lambda _: 1.0)
"""The plain mean, Σ w_i / N."""

SAMPLES = ByAmount(lambda contribution: float(contribution.samples))
"""Each contribution counts by the examples that its shard holds: Σ n_i w_i / Σ n_i.

This is FedAvg's rule (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, algorithm 1).
"""


def loss_weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Weigh each contribution by its training loss, which favors shards that fare worse.

    The mean is Σ l_i w_i / Σ l_i, an idea of the ECE751 report. If all losses are zero, all weights
    are equal. A negative loss has no meaning as a weight, so we refuse it, as well as one that is
    not finite.
    """
    refused = {
        contribution.shard: f"loss {contribution.loss} cannot be a weight"
        for contribution in contributions
        if not (math.isfinite(contribution.loss) and contribution.loss >= 0)
    }
    if refused:
        raise UpdatesRefused(refused)
    return shares([contribution.loss for contribution in contributions])


def first_weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Give the lowest shard all the weight, and discard the other shards' work.

    We have this rule because the code published with the ECE751 report did this: its loop computed
    the mean and never stored it.
    """
    lowest = min((contribution.shard for contribution in contributions), default=0)
    return shares([float(contribution.shard == lowest) for contribution in contributions])


class Node(NamedTuple):
    """A sum of the updates from `shard` on, which stands for a block of 2^level shards."""

    shard: int
    level: int = 0


ORDER = "tree"
"""The name of this order in records; earlier releases, which wrote none, added shard by shard."""

ADD = None
"""The step that adds the last two sums."""


def meeting(one: int, other: int) -> int:
    """Return the level at which the paths of two shards meet: 1 for shards 0 and 1."""
    return (one ^ other).bit_length()


def full_additions(nodes: Sequence[Node]) -> Iterator[Node | None]:
    """Yield the steps that add all possible nodes while any other shard may still come.

    The nodes are in the order of their shards. A step is a node or `ADD`. The sum so far is a block
    in which no shard is missing.
    """
    done: list[Node] = []
    for node in nodes:
        yield node
        done.append(node)
        while len(done) > 1 and _are_siblings(*done[-2:]):
            yield ADD
            done[-2:] = [_sum_of(*done[-2:])]


def last_additions(nodes: Sequence[Node], following: int | None = None) -> Iterator[Node | None]:
    """Yield the steps that add all possible nodes once we know which shards there are.

    `following` is the next arrived shard that is not among the nodes; None if all are.
    """
    done: list[Node] = []
    ends = [node.shard for node in nodes[1:]]
    for node, after in zip(nodes, [*ends, following], strict=True):
        yield node
        done.append(node)
        while len(done) > 1 and _meet_before(after, *done[-2:]):
            yield ADD
            done[-2:] = [_sum_of(*done[-2:])]


def remaining(steps: Sequence[Node | None]) -> list[Node]:
    """Return the nodes that these steps leave, in the order of their shards."""
    left: list[Node] = []
    for step in steps:
        if step is None:
            left[-2:] = [_sum_of(*left[-2:])]
        else:
            left.append(step)
    return left


def _sum_of(left: Node, right: Node) -> Node:
    return Node(left.shard, meeting(left.shard, right.shard))


def _are_siblings(left: Node, right: Node) -> bool:
    return left.level == right.level == meeting(left.shard, right.shard) - 1


def _meet_before(following: int | None, left: Node, right: Node) -> bool:
    """Whether two neighbors meet before the right one meets the shard that follows."""
    meet = meeting(left.shard, right.shard)
    return following is None or meet < meeting(right.shard, following)


_THREADS_MAX = 2  # measured: memory, not arithmetic, is the limit from here on
_ONE_THREAD_BYTES = 32 * 2**20  # measured: below this a second thread costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A contribution, and the factor of its numbers."""

    contribution: Contribution
    factor: float

    @property
    def shard(self) -> int:
        """Its shard."""
        return self.contribution.shard

    @property
    def node(self) -> Node:
        """Its place in the tree."""
        return Node(self.shard)

    @property
    def parts(self) -> tuple[Counted, ...]:
        """Itself, in the same form as a sum's parts."""
        return (self,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A sum of some parts, and its place in the tree."""

    node: Node
    kept: PartialSum
    parts: tuple[Counted, ...]


Item = Counted | Held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Base:
    """The model from which updates are differences, and their format.

    If this process has published the model, it has kept it, and we need not verify it.
    """

    file: PublishedFile
    form: UpdateFormat
    source: SummedFile
    metadata: Mapping[str, str]
    is_verified: bool = False

    @classmethod
    def opened(
        cls,
        store: Store,
        file: PublishedFile,
        compression: str,
        trained_from: PublishedFile | None = None,
    ) -> Self:
        """Map a model's file; compressed updates say which version they were `trained_from`."""
        model = decode(store.read(file, verified=False), file.name)
        if base_of(model) is not None:
            raise FileCorrupt(file.name, "is a difference, but the version before it is unknown")
        form = UpdateFormat.of(model, trained_from or file, compression)
        source = SummedFile(head=model.head, data=model.data)
        # A version that was a round's only update also describes its task.
        return cls(file=file, form=form, source=source, metadata=about_model(model.metadata))

    @classmethod
    def known(
        cls,
        file: PublishedFile,
        model: Parameters,
        data: Array,
        compression: str,
        trained_from: PublishedFile | None = None,
    ) -> Self:
        """Take a model that is in memory; `data` are the bytes of its tensors."""
        form = UpdateFormat.of(model, trained_from or file, compression)
        source = SummedFile(head=memoryview(b""), data=data)
        return cls(file=file, form=form, source=source, metadata=model.metadata, is_verified=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The outcome of a pass: the sums that remain, or the errors."""

    held: Sequence[Held] = ()
    refused: dict[int, str] = field(default_factory=dict)
    altered: tuple[int, ...] = ()
    base_altered: bool = False
    sound: bool = True

    @property
    def is_right(self) -> bool:
        """Whether we can use the sums."""
        return self.sound and not (self.refused or self.altered or self.base_altered)


class Passes:
    """Passes over a round's updates, one after another.

    Args:
        store: Where the files are.
        base: The model that training began from.
        parts: All parts whose files we will read; their size decides the number of threads.
        threads: The number of threads; absent: at most two.
        divisor: The divisor of the whole sum; absent until there is one.
        combine: The statistic that replaces the sum; it needs all parts in one pass.
    """

    def __init__(
        self,
        store: Store,
        base: Base,
        parts: Sequence[Counted],
        *,
        threads: int | None = None,
        divisor: float | None = None,
        combine: Combine | None = None,
    ) -> None:
        self._store = store
        self._combine = combine
        self.files_at_once = files_at_once()
        if combine is not None:
            self.files_at_once, most = len(parts), descriptors_allowed() // 2
            if len(parts) > most:
                told = f"{len(parts)} updates must be open at once, but this process may open"
                raise StoreError(f"{told} {most} (ulimit -n)")
        self._base = base
        self._divisor = divisor
        self._sole: SummedFile | None = None
        total_bytes = sum(part.contribution.file.size_bytes for part in parts)
        usual = 1 if total_bytes < _ONE_THREAD_BYTES else min(_THREADS_MAX, usable_cores())
        self._summing = Summing(
            base.form, base.source, threads=threads or usual, is_verified=base.is_verified
        )

    def add(
        self,
        items: Sequence[Item],
        steps: Sequence[Node | None],
        *,
        others: Sequence[Counted] = (),
        is_last: bool = False,
    ) -> Passed:
        """Add items, which `steps` name by node; `Summing.add` explains `others` and `last`."""
        parts = [*(item for item in items if isinstance(item, Counted)), *others]
        files, refused = self._open(parts)
        if refused:
            return Passed(refused=refused)
        if len(files) < len(parts):
            return Passed(altered=tuple(part.shard for part in parts))
        terms = {one.node: one.kept if isinstance(one, Held) else files[one.shard] for one in items}
        made = self._summing.add(
            [terms[step] if step is not None else None for step in steps],
            others=[files[part.shard] for part in others],
            divisor=self._divisor if is_last else None,
            sole=self._sole,
            combine=self._combine,
        )
        in_order = [step.shard for step in steps if step and isinstance(terms[step], SummedFile)]
        checksums = dict(zip([*in_order, *(p.shard for p in others)], made.checksums, strict=True))
        wrong = (p.shard for p in parts if checksums[p.shard] != p.contribution.file.checksum)
        base = self._base
        return Passed(
            held=_held(steps, made.sums, items),
            altered=tuple(wrong),
            base_altered=not base.is_verified and self._summing.base_checksum != base.file.checksum,
            sound=made.sound,
        )

    def _open(self, parts: Sequence[Counted]) -> tuple[dict[int, SummedFile], dict[int, str]]:
        """Open the files of parts, except those of another format; say why some are missing."""
        files: dict[int, SummedFile] = {}
        refused: dict[int, str] = {}
        for part in parts:
            published = part.contribution.file
            with refusing(refused, part.shard):
                file = decode(self._store.read(published, verified=False), published.name)
                if self._base.form.misfit(file) is None:
                    source = SummedFile(head=file.head, data=file.data, factor=part.factor)
                    files[part.shard] = source
                    if part.factor == self._divisor and self._combine is None:
                        self._sole = source
        return files, refused


def _held(
    steps: Sequence[Node | None], sums: Sequence[PartialSum], items: Sequence[Item]
) -> list[Held]:
    """Return the sums that steps leave, each with its parts; both are in the order of shards."""
    nodes = remaining(steps)
    ends = [*(node.shard for node in nodes[1:]), None]
    return [
        Held(
            node=node,
            kept=kept,
            parts=tuple(
                part
                for item in items
                if item.node.shard >= node.shard and (end is None or item.node.shard < end)
                for part in item.parts
            ),
        )
        for node, kept, end in zip(nodes, sums, ends, strict=True)
    ]


def examine(
    store: Store, base: Base, contributions: Sequence[Contribution], *, known: Mapping[int, str]
) -> dict[int, str]:
    """Return why we cannot aggregate some contributions: the reason for each such shard.

    We read each file separately: verify its checksum, compare its layout and check its numbers. So
    we find exactly the shards that workers must retrain, all at once. A round whose fold succeeds
    never gets here, so this may be slow. We don't read the files of shards whose reason is `known`.
    """
    reasons = dict(known)
    if not base.is_verified:
        store.read(base.file)
    form = base.form
    model = form.model.views(base.source.data)
    for contribution in sorted(contributions, key=lambda contribution: contribution.shard):
        shard, name = contribution.shard, contribution.file.name
        if shard in known:
            continue
        with refusing(reasons, shard):
            file = decode(store.read(contribution.file), name)
            if misfit := form.misfit(file):
                reasons[shard] = misfit
            else:
                check_sound(file, model, name)
    return reasons


@contextmanager
def refusing(reasons: dict[int, str], shard: int) -> Iterator[None]:
    """Note why a shard's update cannot be used; raise if the directory failed, not the update."""
    try:
        yield
    except SharedDirectoryError:
        raise
    except StoreError as error:
        reasons[shard] = str(error)


def check_sound(update: ParameterFile, model: Mapping[str, Array], name: str) -> None:
    """Raise FileCorrupt if an update's file of this name holds numbers that no model may have."""
    decoded = f"as {compression_of(update)} decodes it, "
    unsound = chain(
        ((tensor, decoded) for tensor, each in decompressed(update) if not np.isfinite(each).all()),
        (
            (tensor, "")
            for tensor, numbers in update.tensors.items()
            if numbers.dtype.kind == "f" and not is_sound(numbers, model[tensor])
        ),
    )
    for tensor, how in unsound:
        raise FileCorrupt(name, f"{how}tensor {tensor!r} holds NaN or infinity")
