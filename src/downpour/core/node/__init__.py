"""The decisions of a manager and a worker, as pure state machines for two kinds of drivers.

`cluster/manager/` and `cluster/worker/` put threads, sockets and files around a node;
`downpour_lab/` puts a queue of events in virtual time around it. So a node that works in the
simulator also works in the processes that users start: the two differ only in how time and bytes
pass.
"""
