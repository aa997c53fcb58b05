"""Whether a request may run, or is told which limit it reached; and what limits count."""
