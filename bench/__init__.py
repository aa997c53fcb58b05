"""Load generators and comparisons. Nothing here is installed with the distribution."""
