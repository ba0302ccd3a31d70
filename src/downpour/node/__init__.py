"""What a manager and a worker decide, as pure state machines that drivers of two kinds drive.

`manager/` and `worker/` put threads, sockets and files around a node, `simulator/` a heap of what
happens next in virtual time. So what the simulator proves of a node holds of the processes that
users start; what differs is how time and bytes pass.
"""
