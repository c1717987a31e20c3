"""Tasks: a step of `megapack.steps` each, with retries, run logs and artifacts. Nothing else."""
