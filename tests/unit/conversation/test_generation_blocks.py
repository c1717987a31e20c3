"""`{% generation %}` marks what stands inside and changes nothing else."""

import pytest

from megapack.conversation.jinja_env import SPAN_END, SPAN_START, compile_template


def rendered(text):
    made = compile_template(text, today=None).render(words="w")
    return made.replace(SPAN_START, "[").replace(SPAN_END, "]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a{% generation %}{{ words }}{% endgeneration %}b", "a[w]b"),
        ("{% set x=1 %}{% generation %}{% set x=2 %}{{ x }}{% endgeneration %}{{ x }}", "[2]1"),
        (
            "{% set ns=namespace(x=1) %}{% generation %}{% set ns.x=2 %}{% endgeneration %}"
            "{{ ns.x }}",
            "[]2",
        ),
        (
            "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}"
            "{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
            "[1][3]",
        ),
        (
            "{% macro m(a) %}{% generation %}{{ a }}{% endgeneration %}{% endmacro %}"
            "{% set z %}{{ m('q') }}{% endset %}{{ z | upper }}",
            "[Q]",
        ),
        (
            "{% generation %}\n  {%- if true %}\n a\n{% endif %}\n{% endgeneration %}\n b",
            "[ a\n] b",
        ),
        ("x {% generation -%} a {%- endgeneration %} y", "x [a] y"),
    ],
)
def test_block_keeps_its_variables_and_its_white_space(text, expected):
    assert rendered(text) == expected
