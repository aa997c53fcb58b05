"""Alembic's revisions of the registry: the only thing that changes its schema."""
