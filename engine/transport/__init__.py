"""How requests reach an engine and tokens come back, over a Redis-protocol server. Torch-free."""
