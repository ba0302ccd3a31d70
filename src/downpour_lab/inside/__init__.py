"""Arrangements inside a worker that cut the network: layers, or slices of dense layers.

They serve the comparison with the Lerat study (`examples/papers/lerat.toml`). Entry points register
them as members of the family `ARRANGEMENTS`, as those of any other package may.
"""
