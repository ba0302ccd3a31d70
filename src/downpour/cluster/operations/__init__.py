"""What people who run a cluster do beside training: tokens, certificates, checks of the folder."""
