"""The faults of a simulated cluster, and the plan of them that a seed gives."""
