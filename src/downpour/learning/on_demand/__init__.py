"""Examples that your own task reads on demand, by index.

What `learning/datasets/` prepares is decoded once for all workers and lies in the shared directory
as arrays. What is here stays where and as it is: a file of tokens is mapped into memory, an image
is decoded by the worker that trains on it. So it may be larger than memory and disk together. Each
class has `len()` and `[i]`, as a task's `examples` needs, and example i never changes, except by
random augmentation, which follows from the position in training.
"""

from __future__ import annotations

from downpour.learning.on_demand.images import ImageFolder
from downpour.learning.on_demand.tokens import TokenWindows
from downpour.learning.on_demand.transforms import transforms

__all__ = ["ImageFolder", "TokenWindows", "transforms"]
