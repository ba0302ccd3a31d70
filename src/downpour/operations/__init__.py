"""What people who run a cluster do beside training: make tokens and certificates."""
