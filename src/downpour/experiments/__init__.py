"""Everything you do with experiments: run, follow, study, use, reproduce, watch on a live page."""
