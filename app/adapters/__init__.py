"""Adapters: upload, versions, aliases, names, verification."""
