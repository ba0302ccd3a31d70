"""What people who run a cluster do beside training: tokens, certificates, a look at the folder."""
