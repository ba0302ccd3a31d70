"""Examples that your own task reads on demand, by index.

`learning/datasets/` decodes examples once for all workers, to arrays in the shared directory. The
classes here leave the data where and as they are. They map a file of tokens into memory, and each
worker decodes the images that it trains on. So the data may be larger than memory and disk
together. Each class has `len()` and `[i]`, as a task's `examples` needs. Example i never changes,
except by random augmentation, which follows from the position in training.
"""

from __future__ import annotations

from downpour.learning.on_demand.images import ImageFolder
from downpour.learning.on_demand.tokens import TokenWindows
from downpour.learning.on_demand.transforms import transforms

__all__ = ["ImageFolder", "TokenWindows", "transforms"]
