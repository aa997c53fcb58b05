"""Tokens in, tokens out: scheduler, page pool, model runner. No HTTP, no SQL, no text."""
