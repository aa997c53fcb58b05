"""Looks at all that Tenfold depends on, and says what to do."""
