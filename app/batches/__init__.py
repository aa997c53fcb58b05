"""Batches: a file of requests that a worker sends through the same doors as everybody's."""
