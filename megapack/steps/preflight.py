"""Refuse what cannot work before anything is computed: one clear error each.

Nothing here reads conversations. What is checked: the store takes conditional writes, the sources
exist, the tokenizer loads and knows the format, the planned rows serve the training layout, and
the scratch space for processes can be written.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.prompt import make_prompt, resolve_pad_id
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import ConfigError, StoreError
from megapack.jobs.extract import ExtractSettings
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainSettings
from megapack.steps.extraction.payload_size import kinds_of
from megapack.steps.split import list_sources
from megapack.store.location import open_location


def check_prepare(job: PrepareJob) -> Iterator[str]:
    """Check what the data steps need, yielding a line for each thing that is right.

    Raises:
        ConfigError: the tokenizer, the format, or a source is wrong.
        StoreError: the store refuses us or cannot be reached.
    """
    location = open_location(job.store)
    location.check_writable()
    yield f"preflight store={location.uri} writable=yes conditional_writes=yes"
    encoder = HuggingFaceEncoder(read_tokenizer_files(job.tokenizer))
    for form in sorted({source.format or job.tokenize.format for source in job.sources}):
        make_prompt(form, encoder=encoder, config=job.tokenize)
        pad_id = resolve_pad_id(form, encoder=encoder, config=job.tokenize)
        yield f"preflight format={form.value} vocabulary={encoder.vocabulary_size} pad_id={pad_id}"
    yield f"preflight source_files={len(list_sources(job))}"


def check_training(
    prepare: PrepareJob, train: TrainSettings, extract: ExtractSettings | None
) -> Iterator[str]:
    """Check that the rows to be packed serve the layouts of training and extraction.

    Raises:
        ConfigError: a layout needs multiples that the dataset will not have, or the tokenizer
            has tokens that the model has not, or a payload asks for more top tokens than there
            are.
        StoreError: the scratch folder cannot be written.
    """
    if train.model.vocab_size is not None:
        encoder = HuggingFaceEncoder(read_tokenizer_files(prepare.tokenizer))
        train.model.vocabulary(encoder.vocabulary_size)
        yield f"preflight model_vocabulary={train.model.vocab_size} holds_tokenizer=yes"
    if extract is not None:
        vocab_size = train.model.vocab_size
        if vocab_size is None:
            encoder = HuggingFaceEncoder(read_tokenizer_files(prepare.tokenizer))
            vocab_size = encoder.vocabulary_size
        kinds = kinds_of(extract.payload, train.model, vocab_size)
        yield f"preflight payload={','.join(one.kind.value for one in kinds)}"
    stored = prepare.granularity()
    layouts = {"train": train.parallel} | ({} if extract is None else {"extract": extract.parallel})
    for name, layout in layouts.items():
        need = layout.granularity(prepare.precision)
        if not stored.serves(need, row_length=prepare.pack.row_length):
            raise ConfigError(
                f"{name}.parallel needs rows in multiples of {need.segment} (segment) and "
                f"{need.row} (row) ({'; '.join(need.reasons)}), but prepare.pack_for gives "
                f"slots in multiples of {stored.segment} and prepare.pack.row_length is "
                f"{prepare.pack.row_length}. Set prepare.pack_for to a layout whose multiples "
                "these divide."
            )
        yield f"preflight {name} ranks={layout.sizes().world_size} multiples_served=yes"
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "probe").write_bytes(b"")
    except OSError as error:
        raise StoreError(
            f"expected a writable temporary folder for checkpoints in progress, found {error}. "
            "Set TMPDIR to one."
        ) from error
