"""The API as documents: one for tenants, one for operators, each operation with an example."""
