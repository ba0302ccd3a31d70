"""Ships a task's own code to the workers, as one file in the experiment's folder.

`bundle.py` has that file's content, what it may hold, and what collects it at submission. On a
worker, `receiving.py` decides whether the bundle is needed and may be taken, keeps it in a folder
of this machine, and has imports find it there.
"""
