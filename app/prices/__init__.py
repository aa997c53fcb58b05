"""The price book: what a million tokens cost, on which base, for whom, from when on."""
