"""Adapters' own chat templates: checked when they come, and rendered where they can do no harm."""
