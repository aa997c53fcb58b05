"""What the tests' files are sealed with."""

ENVELOPE_KEYS = "envelope-key-of-the-tests-0123456789"
