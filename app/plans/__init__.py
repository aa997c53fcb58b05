"""Plans, and the limits that they, tenants, keys and adapters set."""
