"""Rollouts: an alias goes over to another version in steps, and back where that one is worse."""
