"""Pure functions of tensors; they know nothing of requests, adapters or tenants."""
