"""What skipscope costs: `python -m benchmarks` (see README.md; results in RESULTS.md)."""
