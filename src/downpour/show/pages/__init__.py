"""Results as a page, a folder of files, and events for TensorBoard."""
