"""Tenants' API keys: made, listed, disabled, deleted."""
