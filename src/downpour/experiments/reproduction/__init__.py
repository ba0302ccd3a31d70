"""An experiment trained once more from its record, task by task, and compared with what it was."""
