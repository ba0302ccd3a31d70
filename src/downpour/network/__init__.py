"""Thrift, finding whom to call, and the Prometheus endpoint."""
