"""Training: data, networks, tasks, and one worker's loop of steps."""
