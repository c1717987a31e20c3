"""Teacher payloads from a packed dataset that stands and a teacher that stands."""

from prefect import flow

from megapack.jobs.extract import ExtractRequest, ExtractSettings
from megapack.records.refs import PayloadRef
from tasks.extract import extract_payload, plan_payload, resolve_payload, summarize_payload


@flow(name="extract-teacher")
def extract_teacher(
    dataset: str,
    teacher: str,
    store: str,
    extract: ExtractSettings,
    dataset_version: int | None = None,
    teacher_version: int | None = None,
) -> PayloadRef:
    """Store what a teacher says about every document of a dataset.

    1. Find dataset and teacher, newest versions where no number is given.
    2. Say bytes and time; refuse what is over the limit.
    3. Extract; a run that was stopped goes on after the shards that are recorded.
    4. Sum up what is stored and where.
    """
    request = ExtractRequest(
        dataset=dataset,
        dataset_version=dataset_version,
        teacher=teacher,
        teacher_version=teacher_version,
        extract=extract,
        store=store,
    )
    job = resolve_payload.submit(request).result()
    plan_payload.submit(job).result()
    # In the flow's main thread: a cancel interrupts it at once.
    payload: PayloadRef = extract_payload(job, return_state=True).result()
    summarize_payload.submit(payload).result()
    return payload
