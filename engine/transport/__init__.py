"""How requests reach an engine and tokens come back, over a Redis-protocol server. Torch-free.

`client.QueueClient` is the API's end, `server.EngineTransport` an engine's. The queue itself is
the scripts in `lua/`; docs/decisions/0001-queue.md says why it is shaped so.
"""
