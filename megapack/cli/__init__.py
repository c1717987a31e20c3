"""The `megapack` command. Loads neither torch nor Prefect."""
