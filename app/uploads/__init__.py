"""Uploads in parts, which go on where they stopped."""
