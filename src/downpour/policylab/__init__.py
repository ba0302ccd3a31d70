"""The laboratory of policies: every straggler policy in the same conditions, in virtual time.

It lends the simulator machines that follow given conditions and watches what a run spends. The
simulator searches for faults and knows nothing of this package.
"""
