"""One file per revision, named `<number>_<what>.py`."""
