"""When updates become a model version, and how far shards may be apart: one small value a mode."""

from downpour.core.modes.base import Mode, ModeKind
from downpour.core.modes.checking import APART, MODES, OVERLAPPING, check_mode, mode_of

__all__ = ["APART", "MODES", "OVERLAPPING", "Mode", "ModeKind", "check_mode", "mode_of"]
