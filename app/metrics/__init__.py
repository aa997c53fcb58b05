"""What Prometheus reads from API and worker processes."""
