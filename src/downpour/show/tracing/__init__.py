"""An experiment's record as a trace that Perfetto and chrome://tracing show."""
