"""Benchmarks: each file measures one thing and prints one JSON line."""
