"""Everything you do with experiments and their records: run, read, draw, study, use, reproduce."""
