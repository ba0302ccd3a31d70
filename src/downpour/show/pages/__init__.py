"""Results as a page, and as a folder of files."""
