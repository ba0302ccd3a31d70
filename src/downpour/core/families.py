"""The families whose members a spec names; only this file registers Downpour's own members.

To add a member, write its file and name it here. Help, errors and the contract tests then include
it. Your own package registers its members as entry points instead (`base/family.py`).
"""

from __future__ import annotations

from downpour.base.family import Family, Member

MODES = Family(
    "mode",
    "downpour.modes",
    {
        "sync": Member(
            "downpour.core.modes.sync:SYNC",
            "a barrier after every round: local SGD; FedAvg once per epoch",
        ),
        "k-sync": Member(
            "downpour.core.modes.sync:K_SYNC", "a round ends with its first k updates"
        ),
        "downpour": Member("downpour.core.modes.downpour:DOWNPOUR"),
        "ssp": Member("downpour.core.modes.ssp:SSP"),
        "easgd": Member("downpour.core.modes.easgd:EASGD"),
        "fedasync": Member("downpour.core.modes.fedasync:FEDASYNC"),
        "fedbuff": Member("downpour.core.modes.fedbuff:FEDBUFF"),
        "k-async": Member("downpour.core.modes.fedbuff:K_ASYNC"),
        "quorum": Member("downpour.core.modes.quorum:QUORUM"),
    },
)
"""When updates become a model version; each member is a `ModeKind`."""

POLICIES = Family(
    "policy",
    "downpour.policies",
    {
        "wait": Member("downpour.core.stragglers.wait:WAIT"),
        "drop": Member("downpour.core.stragglers.drop:DROP"),
        "backup": Member("downpour.core.stragglers.backup:BACKUP"),
        "blacklist": Member("downpour.core.stragglers.blacklist:BLACKLIST"),
        "late": Member("downpour.core.stragglers.late:LATE"),
        "clone": Member("downpour.core.stragglers.clone:CLONE"),
        "grass": Member("downpour.core.stragglers.grass:GRASS"),
        "mantri": Member("downpour.core.stragglers.mantri:MANTRI"),
        "wrangler": Member("downpour.core.stragglers.wrangler:WRANGLER"),
        "rebalance": Member("downpour.core.stragglers.rebalance:REBALANCE"),
        "replace": Member("downpour.core.stragglers.replace:REPLACE"),
        "handoff": Member("downpour.core.stragglers.handoff:HANDOFF"),
        "dylu": Member("downpour.core.stragglers.dylu:DYLU"),
    },
)
"""Who trains what; each member is a straggler `Policy`."""

SPLITTERS = Family(
    "split",
    "downpour.splitters",
    {
        "random": Member("downpour.core.splitters.random:owners"),
        "class": Member("downpour.core.splitters.by_class:owners"),
        "equal": Member("downpour.core.splitters.equal:owners"),
        "dirichlet": Member("downpour.core.splitters.dirichlet:owners"),
    },
)
"""Which shard owns each example; each member is a `Splitter`."""

AGGREGATORS = Family(
    "aggregate",
    "downpour.aggregators",
    {
        "average": Member("downpour.files.aggregators.average:weights"),
        "weighted": Member("downpour.files.aggregators.weighted:weights", "by loss"),
        "samples": Member("downpour.files.aggregators.samples:weights", "FedAvg"),
        "first": Member(
            "downpour.files.aggregators.first:weights", "that of shard 0, like the ECE751 code"
        ),
    },
)
"""How much each update counts; each member is an `Aggregator`."""

CODECS = Family(
    "compression",
    "downpour.codecs",
    {
        "float32": Member("downpour.files.compression.floats:FLOAT32"),
        "bfloat16": Member("downpour.files.compression.floats:BFLOAT16"),
        "float16": Member("downpour.files.compression.floats:FLOAT16"),
        "int8": Member("downpour.files.compression.int8:INT8"),
        "int3": Member("downpour.files.compression.stochastic:INT3", "randomly rounded"),
        "terngrad": Member("downpour.files.compression.stochastic:TERNGRAD", "randomly rounded"),
        "ternary": Member("downpour.files.compression.ternary:TERNARY"),
        "topk": Member("downpour.files.compression.topk:TOPK"),
    },
    others=("none",),
)
"""How a worker writes an update's numbers; each member is a `Codec`, and "none" changes nothing."""

FAMILIES = {family.field: family for family in (MODES, POLICIES, AGGREGATORS, CODECS)}
"""The families whose names are a field's values. `split` is missing: it takes a number as well."""
