"""Inside a worker: processes of one machine that train each batch together.

The batch is cut into parts (`spec.parts`), and an arrangement says what each process computes. The
worker's own process takes the step. The bytes are those of one process that computes everything in
order. So a worker with a single core can continue a shard that another began with four.
"""
