"""What decides the rows of a dataset apart from its documents, resolved to plain values.

Rows packed by one recipe may stand beside rows packed by another run of the same recipe. Where any
value differs, a refresh packs everything anew and says which one it was.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from megapack.conversation.encoder import Encoder
from megapack.conversation.prompt import resolve_pad_id
from megapack.jobs.prepare import PrepareJob
from megapack.records.digest import step_address
from megapack.records.refs import TableRef
from megapack.steps.split import SPLIT_SEMANTICS
from megapack.steps.tokenize import TOKENIZE_SEMANTICS
from megapack.steps.wording import changed_fields
from megapack.store.schema import PackedInfo, SchemaId

PACK_SEMANTICS = 2
# The format belongs to each source, the pad token is resolved to its id, the engine decides speed.
_NOT_IN_RECIPE = {"format", "pad_token", "engine"}
Recipe = Mapping[str, Mapping[str, Any]]
"""`settings` by name, and by source name what belongs to one source."""


def packed_info(job: PrepareJob, encoder: Encoder) -> PackedInfo:
    """What all rows of a job's dataset share.

    Raises:
        ConfigError: the tokenizer lacks the pad token.
    """
    granularity = job.granularity()
    formats = sorted({(source.format or job.tokenize.format).value for source in job.sources})
    return PackedInfo(
        row_length=job.pack.row_length,
        segment_granularity=granularity.segment,
        row_granularity=granularity.row,
        pad_id=resolve_pad_id(job.tokenize.format, encoder=encoder, config=job.tokenize),
        vocab_size=encoder.vocabulary_size,
        tokenizer_digest=encoder.digest,
        format=",".join(formats),
    )


def recipe_of(job: PrepareJob, info: PackedInfo) -> Recipe:
    """The recipe of a job.

    Args:
        job: the preparation job.
        info: what all of its rows share.
    """
    pack = job.pack.model_dump(mode="json", exclude={"row_length"})
    tokenize = job.tokenize.model_dump(mode="json", exclude=_NOT_IN_RECIPE)
    settings = {
        **info.model_dump(mode="json"),
        **{f"pack.{name}": value for name, value in pack.items()},
        **{f"tokenize.{name}": value for name, value in tokenize.items()},
        "max_document_tokens": job.max_document_tokens,
        "validation_fraction": job.validation_fraction,
        "semantics.split": SPLIT_SEMANTICS,
        "semantics.tokenize": TOKENIZE_SEMANTICS,
        "semantics.pack": PACK_SEMANTICS,
        "schema of rows": SchemaId.PACKED_ROWS.value,
    }
    formats: dict[str, set[str]] = {}
    for source in job.sources:
        chosen = source.format or job.tokenize.format
        formats.setdefault(source.label, set()).add(chosen.value)
    return {
        "settings": settings,
        "formats": {name: ",".join(sorted(chosen)) for name, chosen in sorted(formats.items())},
        "weights": job.weights(),
    }


def differences(before: Recipe, after: Recipe) -> list[str]:
    """What differs between two recipes, one line each, "field: from -> to".

    A source that only one of them has is no difference.
    """
    if not before:
        return ["the version before records no recipe"]
    old, new = before["settings"], after["settings"]
    lines = changed_fields(old, new)
    for what in ("format", "weight"):
        old, new = before[f"{what}s"], after[f"{what}s"]
        lines += [
            f"{what} of source {name}: {old[name]} -> {new[name]}"
            for name in sorted({*old} & {*new})
            if old[name] != new[name]
        ]
    return lines


def pack_address(job: PrepareJob, tokenizer: str, tables: Sequence[TableRef]) -> str:
    """Address of a dataset packed from all documents of some tables.

    Found without loading the tokenizer: the pad id and the size of the vocabulary follow from it.

    Args:
        job: the preparation job.
        tokenizer: digest of its files.
        tables: what it is made from, in reading order.
    """
    granularity = job.granularity()
    inputs = {
        "tables": [ref.digest for ref in tables],
        "pack": job.pack.model_dump(mode="json"),
        "weights": job.weights() if job.pack.blend else {},
        "tokenizer": tokenizer,
        "pad_token": job.tokenize.pad_token,
        "format": job.tokenize.format.value,
        "formats": sorted({(one.format or job.tokenize.format).value for one in job.sources}),
        "segment": granularity.segment,
        "row": granularity.row,
        "validation_fraction": job.validation_fraction,
    }
    return step_address("pack", PACK_SEMANTICS, inputs)
