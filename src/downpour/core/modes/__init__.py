"""Modes: when updates become a model version, and how far apart shards may be."""

from downpour.core.modes.base import Mode, ModeKind
from downpour.core.modes.checking import APART, MODES, OVERLAPPING, check_mode, mode_of

__all__ = ["APART", "MODES", "OVERLAPPING", "Mode", "ModeKind", "check_mode", "mode_of"]
