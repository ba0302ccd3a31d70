"""Datasets: decoded once into a shared folder, and mapped into memory by every worker.

`prepare` turns a spec's dataset into a folder of flat arrays and returns its name; `open_prepared`
maps that folder. `SOURCES` lists the datasets known by name; any other comes from a
`package.module:factory` on the allow-list. Importing these modules imports no torch;
only `images.py` uses it, to resize.
"""

from downpour.learning.datasets.preparation import SOURCES, check_source, prepare
from downpour.learning.datasets.prepared import Examples, PreparedDataset, open_prepared

__all__ = ["SOURCES", "Examples", "PreparedDataset", "check_source", "open_prepared", "prepare"]
