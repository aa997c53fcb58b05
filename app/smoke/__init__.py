"""Tries a running Tenfold from outside, through nothing but its two APIs: `tenfold smoke`."""
