"""The live page: the tables that it draws, folded from a record, and the page itself."""
