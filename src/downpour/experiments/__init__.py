"""What is done with experiments and their records: run, read, draw, study, use, reproduce."""
