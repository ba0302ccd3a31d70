"""The members of families that a spec may name, where they are many."""

from __future__ import annotations

from typing import Literal, TypeAlias

Policy: TypeAlias = Literal[
    "wait",
    "drop",
    "backup",
    "blacklist",
    "late",
    "clone",
    "grass",
    "mantri",
    "wrangler",
    "rebalance",
    "replace",
    "handoff",
    "dylu",
]
"""The straggler policies (`core/stragglers/`)."""

Compression: TypeAlias = Literal[
    "none", "float32", "bfloat16", "float16", "int8", "ternary", "topk"
]
"""The codecs of updates (`files/compression/`), and "none"."""

WITH_ERROR_MEMORY = frozenset({"ternary", "topk"})
"""The codecs of which a shard keeps what was not sent, for its next task."""
