"""A worker: accepts tasks over RPC, trains them one at a time, publishes and reports updates."""
