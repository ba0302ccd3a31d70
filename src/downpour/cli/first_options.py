"""The options that most people need: `--help` shows these, and `--help-all` shows all.

Commands that are missing here show all their options with `--help`.
"""

from __future__ import annotations

_TRAINING = ("--dataset", "--model", "--epochs", "--batch-size", "--learning-rate", "--optimizer")
_SHARDS = ("--shards", "--split", "--mode", "--policy", "--device", "--name", "--seed")
_STUDY = ("--out", "--on", "--manager", "--shared", "--data-dir", "--detach", "--status", "--json")

FIRST: dict[str, tuple[str, ...]] = {
    "run": (
        *_TRAINING,
        "--workers",
        *_SHARDS,
        *("--on", "--shared", "--resume", "--dashboard"),
    ),
    "submit": ("--manager", "--shared", "--watch", *_TRAINING, *_SHARDS, "--resume"),
    "grid": _STUDY,
    "experiment": _STUDY,
    "tune": _STUDY,
    "compare-policies": (
        *("--policies", "--scenario", "--jobs", "--rounds", "--standbys", "--figure", "--spec"),
        *("--shared", "--json"),
    ),
    "simulate": (
        *("--seeds", "--seed", "--faults", "--story", "--keep", "--json"),
        *("--workers", "--shards", "--rounds", "--mode", "--policy", "--deaths-an-hour"),
    ),
    "up": (
        *("--workers", "--on", "--hosts", "--device", "--shared", "--data-dir", "--host", "--port"),
        *("--dashboard", "--service"),
    ),
    "manager": (
        *("--shared", "--host", "--port", "--data-dir", "--successor", "--dashboard"),
        *("--make-token", "--token-file", "--log", "--verbose"),
    ),
    "worker": (
        *("--manager", "--shared", "--name", "--device", "--host", "--port", "--label"),
        *("--accept-code", "--token-file", "--log", "--verbose"),
    ),
}
"""By command, most needed first."""
