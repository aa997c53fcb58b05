"""Starts and stops the processes of one machine: servers from wheels, engine, worker, API.

Knows nothing of what those processes do. Invariant: nothing that it starts outlives it.
"""
