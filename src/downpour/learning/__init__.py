"""What is trained, and one worker's loop: data, networks, tasks, steps."""
