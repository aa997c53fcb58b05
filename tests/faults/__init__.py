"""Real processes, killed under load; what clients saw is held against the ledger."""
