"""The logs of a cluster's processes: each process keeps its own in the shared directory."""
