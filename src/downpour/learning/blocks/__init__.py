"""Examples by index in files of others: where their blocks lie, and how the examples are read."""
