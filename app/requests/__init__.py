"""Accepted requests, and the ledger of what they used."""
