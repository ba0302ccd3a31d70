"""Records as tables, figures, reports, traces and the tables of the live page."""
