"""When updates become a model version, and how far shards may be apart: one small value a mode."""

from downpour.core.modes.base import Mode, ModeKind
from downpour.core.modes.checking import APART, check_mode, mode_of
from downpour.core.modes.kinds import MODES

__all__ = ["APART", "MODES", "Mode", "ModeKind", "check_mode", "mode_of"]
