"""The faults of a simulated cluster, and the plan that a seed makes of them."""
