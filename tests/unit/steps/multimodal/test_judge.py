"""What is usable, why the rest is not, and that sizes are those written."""

import pytest

from megapack.multimodal.config import DropoutConfig
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_sample import LaidSample, Sample, SampleSize
from megapack.records.rejects import RejectReason
from megapack.steps.multimodal.judge import Judge
from tests.support.multimodal_samples import RULES, ref_of, text, vae, vit
from tests.support.multimodal_sources import png

NEVER = DropoutConfig(text=0.0, vit=0.0, vae=0.0)
ALWAYS = DropoutConfig(text=1.0, vit=1.0, vae=1.0)


def _judged(*items, dropout=NEVER, row=0, encoded=None, **limits):
    budgets = {"max_tokens": 40, "expected_tokens": 1, "max_sample_tokens": 40}
    judge = Judge(
        rules=RULES,
        limits=RowLimits(**budgets | {"prefer_buffer_before": 0} | limits),
        dropout=dropout,
        seed=0,
        epoch=0,
    )
    encoded = (png(),) if encoded is None else encoded
    return judge.judged(Sample(ref=ref_of(row), items=items, encoded=encoded))


CONDITIONS = (text(1, 2, 3, droppable=True), vit(2, 2, droppable=True), vae(1, 1, loss=True))


def test_c14_the_size_is_what_is_written_after_dropout():
    """Published: the estimate before dropout, and two more for each item, decides what fits."""
    whole, dropped = _judged(*CONDITIONS), _judged(*CONDITIONS, dropout=ALWAYS)
    assert whole.size == SampleSize(tokens=5 + 6 + 3, vit_tokens=4, vae_tokens=1, images=2)
    assert dropped.size == SampleSize(tokens=3, vae_tokens=1, images=1)
    assert int(dropped.lengths.sum()) == 3
    assert [pixels.shape for pixels in whole.sample.pixels] == [(4, 4, 3), (3, 3, 3)]


@pytest.mark.parametrize("dropout", [NEVER, ALWAYS])
def test_the_limit_of_a_sample_is_judged_before_dropout(dropout):
    """So an epoch's draws do not decide whether a sample is usable; the limit is inclusive."""
    assert isinstance(_judged(*CONDITIONS, dropout=dropout, max_sample_tokens=14), LaidSample)
    reject = _judged(*CONDITIONS, dropout=dropout, max_sample_tokens=13)
    assert reject.reason is RejectReason.TOO_MANY_TOKENS
    assert "at most max_sample_tokens = 13 tokens before dropout, found 14" in reject.detail


@pytest.mark.parametrize(
    ("limit", "least", "reason"),
    [
        ("max_vit_tokens", 4, RejectReason.TOO_MANY_VIT_TOKENS),
        ("max_vae_tokens", 2, RejectReason.TOO_MANY_VAE_TOKENS),
        ("max_images", 2, RejectReason.TOO_MANY_IMAGES),
    ],
)
def test_mm4_a_sample_alone_over_the_budget_of_images_is_left_out(limit, least, reason):
    items = (vit(2, 2), vae(2, 1, loss=True))
    assert isinstance(_judged(*items, **{limit: least}), LaidSample)
    reject = _judged(*items, **{limit: least - 1})
    assert reject.reason is reason
    assert f"at most {limit} = {least - 1}, found {least}" in reject.detail


def test_an_image_that_cannot_be_decoded_and_a_sample_of_which_nothing_is_left_are_left_out():
    broken = _judged(*CONDITIONS, encoded=(png()[:60],))
    assert broken.reason is RejectReason.UNREADABLE_IMAGE
    # Whoever shows it says where: a reject goes with the name of its sample.
    assert broken.detail.startswith("image 0: image: expected a whole file")
    empty = _judged(text(1, droppable=True), dropout=ALWAYS)
    assert empty.reason is RejectReason.ALL_DROPPED


def test_what_is_dropped_depends_on_the_sample_alone():
    half = DropoutConfig(text=0.5, vit=0.5, vae=0.5)
    kept = [tuple(_judged(*CONDITIONS, dropout=half, row=row).kept) for row in range(12)]
    again = [tuple(_judged(*CONDITIONS, dropout=half, row=row).kept) for row in range(11, -1, -1)]
    assert again[::-1] == kept
    assert len(set(kept)) > 1
