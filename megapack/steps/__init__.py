"""Steps: plain functions from a job and references to a reference. No torch, no Prefect."""
