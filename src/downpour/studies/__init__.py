"""Studies: a grid or a search → runs, chosen one after the other, and a folder of their results.

Training is done elsewhere (`downpour.api`); tables, figures and pages are made elsewhere, too.
"""
