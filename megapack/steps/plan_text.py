"""A plan in lines for a person, with what it costs and what can be done about it."""

from collections.abc import Iterator

from megapack.steps.drop_advice import advice
from megapack.steps.plan_job import JobPlan, SourcePlan
from megapack.steps.wording import byte_size, counted

_LOW_FILL = 0.9
_HIGH_PADDING = 0.05


def plan_text(plan: JobPlan, *, batch_rows: int | None) -> Iterator[str]:
    """The lines of a plan.

    Args:
        plan: the plan.
        batch_rows: rows of an optimizer step, None when not said.
    """
    about = "" if plan.exact else "about "
    yield f"would make {about}{counted(plan.rows, 'row')} of {plan.row_length:,} positions"
    yield f"  documents  {about}{plan.documents:,}"
    share = plan.targets / max(1, plan.tokens)
    yield f"  tokens     {about}{plan.tokens:,}, {plan.targets:,} of them trained ({share:.1%})"
    yield f"  fill       {plan.fill:.1%} of positions hold tokens"
    yield f"  size       {about}{byte_size(plan.num_bytes)} on the store, rows alone"
    yield from _steps(plan, batch_rows)
    yield ""
    yield "sources"
    for one in plan.sources:
        yield (
            f"  {one.basis.source}: {about}{counted(one.documents, 'document')}, "
            f"{one.tokens:,} tokens, "
            f"{one.targets / max(1, one.tokens):.1%} trained"
        )
        yield f"    {_basis(one)}"
    yield ""
    yield f"dropped: {about}{counted(sum(plan.drops.values()), 'document')}"
    for reason, count in plan.drops.items():
        yield f"  {reason.value}: {about}{count:,}. {advice(reason)}"
    yield from _costs(plan)


def _basis(one: SourcePlan) -> str:
    basis = one.basis
    files = f"{counted(basis.files, 'file')} of {byte_size(basis.num_bytes)}"
    if not basis.records:
        return f"all of {files}"
    read = counted(basis.records, "record") + (
        f" of {basis.files_read:,} files" if basis.files_read < basis.files else ""
    )
    if basis.share == 1.0:
        return f"all {read}, {files}"
    return f"told from the first {read}: {basis.share:.1%} of the bytes of {files}"


def _steps(plan: JobPlan, batch_rows: int | None) -> Iterator[str]:
    if batch_rows is None:
        yield "  steps      say --global-batch-rows N to see tokens a step and steps an epoch"
        return
    each = plan.tokens / max(1, plan.rows) * batch_rows
    steps = plan.train_rows / batch_rows
    yield (
        f"  steps      {steps:,.1f} an epoch over {plan.train_rows:,} training rows, "
        f"{each:,.0f} real tokens a step in {batch_rows * plan.row_length:,} positions"
    )
    if batch_rows > plan.train_rows:
        yield (
            f"  warning: a step of {batch_rows:,} rows reads some of the {plan.train_rows:,} "
            "training rows more than once"
        )


def _costs(plan: JobPlan) -> Iterator[str]:
    yield ""
    yield "what it costs"
    if plan.policies:
        yield f"  long documents: {plan.long_conversations:,} conversations looked at do not fit"
        for one in plan.policies:
            yield (
                f"    {one.policy.value:<9} keeps {one.trained:.1%} of the trained tokens, drops "
                f"{one.dropped:,} of what is too long"
            )
    else:
        yield "  long documents: none was found"
    told = ", ".join(f"cp {size}: {share:.1%}" for size, share in plan.padding.items())
    yield f"  slot padding by context parallel size: {told}"
    if plan.fill < _LOW_FILL:
        yield (
            f"  warning: rows are only {plan.fill:.1%} full. Another --row-length may fill them "
            "better, and a larger sample packs better than a small one"
        )
    if max(plan.padding.values()) > _HIGH_PADDING:
        yield (
            "  warning: documents are short for large context parallel sizes; pack for the "
            "smallest that you will train with"
        )
