"""Decides, and does nothing else; pure: no clock, file, thread, socket or torch.

What to run (`spec/`), who trains which examples (`splitters/`, `scheduler/`, `stragglers/`), when
updates become a version (`modes/`), and what a manager and a worker do next (`node/`).
"""
