"""Tenants' files: received, kept encrypted, given back, and removed when their time is over."""
