"""Benchmarks: megapack against its peers and limits, side by side in one run.

`suite.py` lists goals and benchmarks, `runner.py` runs each benchmark in a process of its own,
`table.py` prints the verdicts. Each `bench_*.py` prints JSON lines through `record.py`.
"""
