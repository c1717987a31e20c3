"""The local stack: an S3 store, a Prefect server and a worker on this machine, for work and tests.

Nothing here is imported by `megapack`, `tasks` or `flows`; production clusters bring their own
store, server and workers.
"""
