"""An engine without a model: everything of `engine/` but the runner and the adapters' bytes.

`HashRunner` stands for the model, `InstantLoader` and `DelayedLoader` for the adapters' files;
core, scheduler, page pool, residency, loop and transport are real. No torch. In a simulation
time is a `VirtualClock`'s; `python -m tests.stub_engine` is a process in real time.
"""
