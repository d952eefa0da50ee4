"""Templates render as Hugging Face does; what is broken or hostile is Rejected, and nothing escapes the sandbox."""

import json
from pathlib import Path

import pytest

from daemons.core.errors import ConfigError, Rejected
from daemons.text.chat_template import compile_template, load_chat_template

USER = [{"role": "user", "content": "hi <b>"}]


def render(source: str, **variables: object) -> str:
    return compile_template(source, special_tokens={"bos_token": "<s>"}).render(
        USER, variables=variables
    )


def test_messages_special_tokens_and_generation_prompt() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}\n  {{ m.role }}={{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}A:{% endif %}"
    )
    assert render(source) == "<s>  user=hi <b>\nA:"


def test_variables_of_the_request_reach_the_template() -> None:
    assert render("{% if enable_thinking %}yes{% endif %}", enable_thinking=True) == "yes"
    assert render("{{ messages|length }}", messages=[]) == "1"


def test_tojson_does_not_escape_for_html() -> None:
    assert render("{{ messages|tojson }}") == json.dumps(USER, ensure_ascii=False)
    assert render("{{ {'a': [1]}|tojson(indent=2) }}") == '{\n  "a": [\n    1\n  ]\n}'


def test_strftime_now_and_loop_controls_and_generation_marks() -> None:
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("{% generation %}x{{ messages[0].role }}{% endgeneration %}") == "xuser"


def test_refusal_carries_the_templates_words() -> None:
    with pytest.raises(Rejected, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ messages.nothing.there }}",
        "{{ 1 / 0 }}",
        "{{ messages['x' * 3]['y'] + 1 }}",
        "{% include 'passwords' %}",
        "{% import 'os' as os %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ 'x' * 100000000000 }}",
        "{{ ('x' * 9999) * 9999 }}",
        "{{ 9 ** 999999999 }}",
        "{{ 'x'|center(1000000000) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ strftime_now(3) }}",
        "{{ messages[7].content }}",
    ],
)
def test_broken_or_hostile_templates_are_rejected(source: str) -> None:
    with pytest.raises(Rejected):
        render(source)


def test_output_is_bounded() -> None:
    template = compile_template(
        "{% for i in range(999) %}xxxxx{{ i }}{% endfor %}", max_output_chars=1000
    )
    with pytest.raises(Rejected, match="1000"):
        template.render(USER)


def test_files_in_order_of_preference(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path, {}, {}) is None
    both = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    listed = load_chat_template(tmp_path, {"chat_template": both}, {})
    assert listed is not None
    assert listed.render(USER) == "plain"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    filed = load_chat_template(tmp_path, {"chat_template": "config"}, {})
    assert filed is not None
    assert filed.render(USER) == "from the file"


def test_nonsense_in_the_config_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load_chat_template(tmp_path, {"chat_template": [3]}, {})
