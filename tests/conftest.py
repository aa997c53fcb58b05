"""Fixtures for every test: see `tests/fixtures/`. Real servers, started once per run."""

pytest_plugins = [
    "tests.fixtures.canaries",
    "tests.fixtures.logs",
    "tests.fixtures.servers",
    "tests.fixtures.registry",
    "tests.fixtures.processes",
    "tests.fixtures.demo_base",
    "tests.fixtures.ledger",
    "tests.fixtures.object_store",
    "tests.fixtures.tenant_bytes",
]
