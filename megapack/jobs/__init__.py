"""Jobs: what a person, Prefect or a worker passes. Frozen, JSON in and out, checked on creation."""
