"""Compiles every Triton kernel that ships, on a machine without a GPU, and judges the code.

`python -m kernels.aot`: collect (`variants`), compile and measure (`compile`), remember (`build`),
judge against rules and recorded budgets (`gate`), show (`table`). It runs in a process that does
not interpret kernels.
"""
