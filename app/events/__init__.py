"""The feed of all changes, for an operator's own systems."""
