"""The decisions of a manager and a worker, as pure state machines for two kinds of drivers.

`cluster/manager/` and `cluster/worker/` put threads, sockets and files around a node;
`downpour_lab/` puts a queue of events in virtual time around it.
"""
