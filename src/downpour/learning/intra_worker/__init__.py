"""Inside a worker: processes of one machine that train each batch together.

The batch is cut into parts (`spec.parts`). The processes share the work in one of three ways:

- `data`: each computes the gradients of some parts.
- `pipeline` (and `stage`): each has some layers, which all parts pass through.
- `hybrid`: each has some parts up to the first dense layer, and slices of dense layers.

The worker's own process takes the step. The bytes are those of one process that computes everything
in order. So a worker with a single core can continue a shard that another began with four.

`team.py` is the worker's side, and `helper.py` the program of a helper. `helper_process.py` has a
helper as the worker sees it, the network that they share, and the links between them.
"""
