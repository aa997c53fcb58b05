"""The demo: its base model, its two trained adapters, and what `tenfold demo` says of them."""
