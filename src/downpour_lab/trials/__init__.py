"""The faults of a seed, the promises of every run, and the search for a seed that fails."""
