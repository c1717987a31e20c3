"""Whether a sample can be placed, and how it is written: the one place that decides both.

In this order, so that what costs time comes last: its full size, what is drawn, its size as written
against the budgets of a row, its pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megapack.errors import DataError
from megapack.multimodal.config import DropoutConfig, WritingRules
from megapack.multimodal.draws import DrawPurpose, sample_generator
from megapack.multimodal.lay import draw_writing, full_size, lay_out
from megapack.multimodal.pixels import place_of, with_pixels
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_sample import LaidSample, Sample
from megapack.records.rejects import RejectReason, SampleReject

_FIELDS: Mapping[RejectReason, tuple[str, str]] = {
    RejectReason.TOO_MANY_TOKENS: ("tokens", "max_tokens"),
    RejectReason.TOO_MANY_VIT_TOKENS: ("vit_tokens", "max_vit_tokens"),
    RejectReason.TOO_MANY_VAE_TOKENS: ("vae_tokens", "max_vae_tokens"),
    RejectReason.TOO_MANY_IMAGES: ("images", "max_images"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges samples.

    Attributes:
        rules: how samples are written.
        limits: budgets of a row.
        dropout: share of conditions left out.
        seed: of the job.
        epoch: from 0.
    """

    rules: WritingRules
    limits: RowLimits
    dropout: DropoutConfig
    seed: int
    epoch: int

    def judged(self, sample: Sample) -> LaidSample | SampleReject:
        """The sample laid out, with pixels; or why it is left out, without its place."""
        full = full_size(sample.items, self.rules).tokens
        if full > self.limits.max_sample_tokens:
            return SampleReject(
                reason=RejectReason.TOO_MANY_TOKENS,
                detail=f"expected at most max_sample_tokens = "
                f"{self.limits.max_sample_tokens} tokens before dropout, found {full}.",
            )
        laid = self.laid(sample)
        if laid.size.tokens == 0:
            return SampleReject(
                reason=RejectReason.ALL_DROPPED,
                detail="expected something to be left of it, found all of its conditions dropped.",
            )
        exceeded = self.limits.exceeded(laid.size)
        if exceeded is not None:
            field, limit = _FIELDS[exceeded]
            return SampleReject(
                reason=exceeded,
                detail=f"expected at most {limit} = "
                f"{getattr(self.limits, limit)}, found {getattr(laid.size, field)} {field} in this "
                "sample alone.",
            )
        try:
            return replace(laid, sample=with_pixels(sample))
        except DataError as error:
            detail = str(error).removeprefix(f"{place_of(sample.ref)}, ")
            return SampleReject(reason=RejectReason.UNREADABLE_IMAGE, detail=detail)

    def laid(self, sample: Sample) -> LaidSample:
        """The sample as it is written in this epoch, without pixels."""
        generator = sample_generator(self.seed, self.epoch, sample.ref, DrawPurpose.WRITING)
        kept, timesteps = draw_writing(sample.items, self.dropout, generator)
        return lay_out(sample, kept=kept, timesteps=timesteps, rules=self.rules)
