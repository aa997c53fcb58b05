"""A request that is sent again is done once, and answered as it was the first time."""
