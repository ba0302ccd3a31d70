"""What goes wrong in a simulated cluster, and the plan of it that a seed gives."""
