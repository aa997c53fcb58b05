"""The audit log: who changed what, in chains that cannot be altered unnoticed."""
