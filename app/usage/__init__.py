"""What was used: metered from the ledger, rolled up by the hour, exported, and reconciled."""
