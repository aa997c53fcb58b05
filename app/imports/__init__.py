"""Adapters that a worker fetches from where they are published."""
