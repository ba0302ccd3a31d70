"""Ships a task's own code to the workers, as one file in the experiment's folder.

`bundle` is that file's content and what it may hold; `making` collects it at submission. On a
worker `receiving` decides whether the bundle is needed and may be taken, `unpacking` keeps it in a
folder of this machine, and `in_use` has imports find it there.
"""
