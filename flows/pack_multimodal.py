"""Text and images to packed rows in a store: checked, packed, audited, shown."""

from prefect import flow

from megapack.jobs.multimodal import PackMultimodalJob
from megapack.records.refs import MultimodalRef
from tasks import multimodal as tasks


@flow(name="pack-multimodal")
def pack_multimodal(pack: PackMultimodalJob) -> MultimodalRef:
    """Publish a multimodal dataset.

    1. Refuse what cannot work: store, tokenizer, files; say how much there is.
    2. Pack all samples and commit a version; a run that was stopped goes on at its last part.
    3. Audit it.
    4. Show what is in it, what was left out, and pictures of rows.
    """
    num_samples = tasks.preflight_multimodal.submit(pack).result()
    dataset: MultimodalRef = tasks.pack_multimodal.submit(pack, num_samples).result()
    tasks.audit_multimodal.submit(dataset).result()
    tasks.report_multimodal.submit(dataset).result()
    return dataset
