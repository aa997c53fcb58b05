"""The secret of the tests' queues: what every process and every part of one seals with."""

QUEUE_SECRET = "secret-of-the-tests-queues"
