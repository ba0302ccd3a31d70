"""The families whose members a spec names; only this file registers Downpour's own members.

To add a member, write its file and name it here. Help, errors and the contract tests then include
it. Your own package registers its members as entry points instead (`base/names.py`).
"""

from downpour.base.names import Family, Member, Number

MODES = Family(
    "mode",
    "downpour.modes",
    {
        "sync": Member(
            "downpour.core.modes:SYNC",
            "a barrier after every round: local SGD; FedAvg once per epoch",
        ),
        "k-sync": Member("downpour.core.modes:K_SYNC", "a round ends with its first k updates"),
        "downpour": Member("downpour.core.modes:DOWNPOUR"),
        "ssp": Member("downpour.core.modes:SSP"),
        "easgd": Member("downpour.core.modes:EASGD"),
        "fedasync": Member("downpour.core.modes:FEDASYNC"),
        "fedbuff": Member("downpour.core.modes:FEDBUFF"),
        "k-async": Member("downpour.core.modes:K_ASYNC"),
        "quorum": Member("downpour.core.modes:QUORUM"),
    },
)
"""When updates become a model version; each member is a `ModeKind`."""

POLICIES = Family(
    "policy",
    "downpour.policies",
    {
        "wait": Member("downpour.core.stragglers.pairing:WAIT"),
        "drop": Member("downpour.core.stragglers.pairing:DROP"),
        "backup": Member("downpour.core.stragglers.copies:BACKUP"),
        "blacklist": Member("downpour.core.stragglers.pairing:BLACKLIST"),
        "late": Member("downpour.core.stragglers.copies:LATE"),
        "clone": Member("downpour.core.stragglers.copies:CLONE"),
        "grass": Member("downpour.core.stragglers.copies:GRASS"),
        "mantri": Member("downpour.core.stragglers.copies:MANTRI"),
        "wrangler": Member("downpour.core.stragglers.copies:WRANGLER"),
        "rebalance": Member("downpour.core.stragglers.moving:REBALANCE"),
        "replace": Member("downpour.core.stragglers.moving:REPLACE"),
        "handoff": Member("downpour.core.stragglers.handoff:HANDOFF"),
        "dylu": Member("downpour.core.stragglers.pairing:DYLU"),
    },
)
"""Who trains what; each member is a straggler `Policy`."""

SPLITTERS = Family(
    "split",
    "downpour.splitters",
    {
        "random": Member("downpour.core.splitters:random_owners"),
        "class": Member("downpour.core.splitters:class_owners"),
        "equal": Member("downpour.core.splitters:equal_owners"),
        "dirichlet": Member(
            "downpour.core.splitters:dirichlet", number=Number("ALPHA", example=0.5, below=1e9)
        ),
    },
)
"""Which shard owns each example; each member is a `Splitter`."""

AGGREGATORS = Family(
    "aggregate",
    "downpour.aggregators",
    {
        "average": Member("downpour.files.aggregators.passes:AVERAGE"),
        "weighted": Member("downpour.files.aggregators.passes:loss_weights", "by loss"),
        "samples": Member("downpour.files.aggregators.passes:SAMPLES", "FedAvg"),
        "first": Member(
            "downpour.files.aggregators.passes:first_weights",
            "that of shard 0, like the ECE751 code",
        ),
        "median": Member(
            "downpour.files.aggregators:MEDIAN",
            "of each number, so that one bad update cannot spoil it",
        ),
        "trimmed-mean": Member(
            "downpour.files.aggregators:trimmed_mean",
            "without that share of the updates at either end, number by number",
            Number("SHARE", example=0.2, below=0.5),
        ),
    },
)
"""How updates become one; each member is an `Aggregator`."""

CODECS = Family(
    "compression",
    "downpour.codecs",
    {
        "float32": Member("downpour.files.compression.codecs:FLOAT32"),
        "bfloat16": Member("downpour.files.compression.codecs:BFLOAT16"),
        "float16": Member("downpour.files.compression.codecs:FLOAT16"),
        "int8": Member("downpour.files.compression.codecs:INT8"),
        "int3": Member("downpour.files.compression.codecs:INT3", "randomly rounded"),
        "terngrad": Member("downpour.files.compression.codecs:TERNGRAD", "randomly rounded"),
        "ternary": Member("downpour.files.compression.codecs:TERNARY"),
        "topk": Member("downpour.files.compression.codecs:TOPK"),
    },
    others=("none",),
)
"""How a worker writes an update's numbers; each member is a `Codec`, and "none" changes nothing."""

ARRANGEMENTS = Family(
    "inside.how",
    "downpour.arrangements",
    {"data": Member("downpour.learning.intra_worker.team:DATA")},
)
"""How processes of a worker share a step; each member is an `Arrangement`. The laboratory registers
two that cut the network."""

FAMILIES = {family.field: family for family in (MODES, POLICIES, SPLITTERS, AGGREGATORS, CODECS)}
"""The families whose names are a field's values."""
