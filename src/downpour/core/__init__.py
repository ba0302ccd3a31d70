"""The pure core: it only makes decisions, and needs no clock, file, thread, socket or torch.

It decides what to run (`spec/`), who trains which examples (`splitters.py`, `scheduler/`,
`stragglers/`), when updates become a version (`modes.py`), and what a manager and a worker do next
(`node/`).
"""
