"""Where the rows of a multimodal job stand in its store."""

from megapack.jobs.multimodal import PackMultimodalJob


def multimodal_uri(job: PackMultimodalJob) -> str:
    """Folder or prefix of the dataset."""
    return f"{job.store.rstrip('/')}/datasets/{job.name}"
