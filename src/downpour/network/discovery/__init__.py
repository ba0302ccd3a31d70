"""How workers and clients find their manager, wait for it, and turn to the one that leads."""
