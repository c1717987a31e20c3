"""Budgets of a multimodal row, and whether a sample fits."""

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megapack.records.multimodal_sample import SampleSize
from megapack.records.rejects import RejectReason

_WITHIN_A_ROW = ("expected_tokens", "max_sample_tokens", "prefer_buffer_before")


class RowLimits(BaseModel):
    """Budgets of a row. All limits are inclusive, for all groups.

    Where `max_tokens` is lower than the default of `expected_tokens`, `max_sample_tokens` or
    `prefer_buffer_before`, that default is `max_tokens`.

    Attributes:
        max_tokens: of a row.
        expected_tokens: a row that has reached it is handed out.
        max_sample_tokens: longer samples are left out and counted, before dropout.
        prefer_buffer_before: while a row holds fewer tokens, samples that wait come first.
        max_buffered: samples that may wait because they did not fit.
        max_vit_tokens: VIT patches of a row, or None.
        max_vae_tokens: VAE latents of a row, or None.
        max_images: images of a row, or None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(default=36864, ge=1)
    expected_tokens: int = Field(default=32768, ge=1)
    max_sample_tokens: int = Field(default=16384, ge=1)
    prefer_buffer_before: int = Field(default=16384, ge=0)
    max_buffered: int = Field(default=50, ge=0)
    max_vit_tokens: int | None = Field(default=None, ge=1)
    max_vae_tokens: int | None = Field(default=None, ge=1)
    max_images: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, given: object) -> object:
        """Lower the defaults of what is not given to `max_tokens`."""
        if not isinstance(given, Mapping):
            return given
        try:
            limit = int(given.get("max_tokens", cls.model_fields["max_tokens"].default))
        except (TypeError, ValueError, OverflowError):
            return given
        defaults = {name: cls.model_fields[name].default for name in _WITHIN_A_ROW}
        lowered = {name: limit for name, default in defaults.items() if 1 <= limit < default}
        return {**lowered, **given}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in _WITHIN_A_ROW:
            if getattr(self, name) > self.max_tokens:
                raise ValueError(
                    f"RowLimits.{name}: expected at most max_tokens = {self.max_tokens}, found "
                    f"{getattr(self, name)}."
                )
        return self

    def fits(self, size: SampleSize) -> bool:
        """Whether a row of that size is within the budgets."""
        return self.exceeded(size) is None

    def exceeded(self, size: SampleSize) -> RejectReason | None:
        """The first budget of a row that `size` exceeds, as the reason to leave a sample out."""
        for reason, found, limit in (
            (RejectReason.TOO_MANY_TOKENS, size.tokens, self.max_tokens),
            (RejectReason.TOO_MANY_VIT_TOKENS, size.vit_tokens, self.max_vit_tokens),
            (RejectReason.TOO_MANY_VAE_TOKENS, size.vae_tokens, self.max_vae_tokens),
            (RejectReason.TOO_MANY_IMAGES, size.images, self.max_images),
        ):
            if limit is not None and found > limit:
                return reason
        return None
