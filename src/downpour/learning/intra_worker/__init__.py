"""Inside a worker: processes of one machine that train each batch together.

The batch is cut into parts (`spec.parts`). Either each process computes the gradients of some parts
(`data`), or each has some layers, which all parts pass through (`pipeline`, `stage`), or some parts
up to the first dense layer and slices of dense layers (`hybrid`). The worker's own process takes
the step. The bytes are those of one process that computes everything in order, so a worker with a
single core can go on with a shard that another has begun with four.

`team` is the worker's side and `process` a helper as it sees it, `helper` what runs in the others,
`shared_network` what they have in common, `link` what lies between two of them, and `running` tells
which helpers there are.
"""
