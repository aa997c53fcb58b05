"""One decoder, and a small data file per family of base models."""
