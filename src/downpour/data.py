"""Examples that your own task reads on demand; public.

Each class has `len()` and `[i]`, as a task's `examples` needs. `local_path` brings a URL's file to
this machine.
"""

from downpour.learning.blocks import Blocks
from downpour.learning.datasets.source import local_path
from downpour.learning.on_demand import ImageFolder, TokenWindows, transforms

__all__ = ["Blocks", "ImageFolder", "TokenWindows", "local_path", "transforms"]
