"""Tenants: the customers whose adapters are served."""
