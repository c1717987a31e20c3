"""The demo's parts that need no stack: the deployment packs what is drawn, and the verdict."""

from infra.demo_run import parameters_of
from infra.multimodal_demo import losses_fell, marks, table
from infra.shapes.job import shapes_job
from infra.shapes.learning import Measured
from infra.shapes.showing import Answered
from megapack.jobs.multimodal import PackMultimodalJob


def test_the_deployment_packs_what_the_shapes_are() -> None:
    chosen = parameters_of("flows.pack_multimodal.pack_multimodal")
    stream = PackMultimodalJob.model_validate(chosen["pack"]).stream
    assert stream == shapes_job(".local/shapes")


def test_both_losses_must_fall_clearly() -> None:
    before = Measured(step=0, cross_entropy=6.0, squared_error=1.5)
    after = Measured(step=9, cross_entropy=0.5, squared_error=0.5)
    assert losses_fell([before, after])
    for cross_entropy, squared_error in ((0.5, 1.4), (5.0, 0.5)):
        hardly = Measured(step=9, cross_entropy=cross_entropy, squared_error=squared_error)
        assert not losses_fell([before, hardly])
    assert table([before, after])[-1].split() == ["after", "9", "0.5000", "0.5000"]


def test_right_answers_are_told_beside_what_guessing_gives() -> None:
    right = Answered(question="What colour?", truth="It is red.", said="It is red.")
    wrong = Answered(question="What colour?", truth="It is red.", said="It is blue.")
    assert marks([right] * 10 + [wrong] * 8) == [
        "right answers about pictures it never saw: 10 of 18 (guessing one of 6 colours: about 3)"
    ]
    few = marks([right] * 5 + [wrong] * 7)
    assert "5 of 12" in few[0]
    assert few[1].startswith("too few steps")
