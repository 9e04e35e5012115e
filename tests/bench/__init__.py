"""Benchmarks, run by hand or by `make bench`; figures, not assertions."""
