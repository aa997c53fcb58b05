"""The ops of `kernels.interface` as Triton kernels: the backend called `gpu`.

Knows nothing of requests, adapters or tenants. Importing it needs Triton, but no CUDA, no driver
and no GPU: kernels are compiled at their first launch, ahead of time by `kernels.aot`, or
interpreted on CPU tensors where `TRITON_INTERPRET=1`.
"""

__all__: list[str] = []
