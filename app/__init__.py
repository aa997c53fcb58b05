"""HTTP, registry, admission, command line. Never imports torch."""
