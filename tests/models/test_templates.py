"""Chat templates: hostile ones are stopped at a limit, and ordinary ones are rendered as by jinja2."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from backburn.models import templates
from backburn.models.templates import LONGEST_TEMPLATE, rendered

pytest.importorskip("jinja2")

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi <b>"}, {"role": "assistant", "content": "yes"}]
LARGE = "the value|a value of|too many steps|above 10000|an indent of|adds numbers|width of five|is not available|Range too big|bits"  # noqa: E501


def plain(source: str) -> str:
    """The text rendered by jinja2's sandbox."""
    import json

    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda x, **options: json.dumps(x, ensure_ascii=False, **options)
    return environment.from_string(source).render(messages=MESSAGES, add_generation_prompt=True, bos_token="<s>")


@pytest.mark.parametrize("source", [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",  # noqa: E501
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for m in messages recursive %}{{ m.role }}{% if loop.depth < 99 %}{{ loop(messages) }}{% endif %}{% endfor %}",
    "{% macro f(n) %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 40 + "x" + "{% endcall %}" * 40,
    "{% block a %}{{ self.b() }}{{ self.b() }}{% endblock %}{% block b %}{{ self.a() }}{% endblock %}",
    "{{ 'a' * 3000000000 }}", "{{ 3000000000 * 'a' }}", "{{ [1] * 3000000000 }}", "{{ 10 ** 10000000 }}",
    "{{ 2 ** 99999 }}", "{{ 'a'|center(3000000000) }}", "{{ 'a'.ljust(3000000000) }}", "{{ 'a'.zfill(300000000) }}",
    "{{ '{:3000000000}'.format(1) }}", "{{ '%3000000000d' % 1 }}", "{{ '%*d' % (3000000000, 1) }}",
    "{{ '{:{}}'.format(1, 3000000000) }}", "{{ '%3000000000d'|format(1) }}", "{{ ('{0}' * 9000).format('a' * 9000) }}",
    "{{ ('a' * 9999).replace('a', 'b' * 9999) }}", "{{ ('a' * 9999)|replace('', 'b' * 9999) }}",
    "{{ ('b' * 9999).join(['a'] * 9999) }}", "{{ (['a'] * 9999)|join('b' * 9999) }}", "{{ ('a' * 9999)|join('b' * 9999) }}",  # noqa: E501
    "{{ ('\\n' * 9999)|indent(9999) }}", "{{ ('\\t' * 9999).expandtabs(9999) }}", "{{ [1]|batch(1000000000, 'x')|list }}",  # noqa: E501
    "{{ ('a' * 9999)|wordwrap(1, true, 'b' * 9999) }}", "{{ 1.5|round(1000000000) }}", "{{ range(10 ** 9)|list }}",
    "{{ messages|tojson(indent=1000000) }}", "{{ ([[1]] * 9999)|sum(start=[]) }}", "{{ 'a'.translate({97: 'b'}) }}",
    "{{ (1).to_bytes(3000000000) }}", "{% set x %}{% for i in range(99999) %}" + "y" * 40_000 + "{% endfor %}{% endset %}",  # noqa: E501
    "{% for i in range(99999) %}" + "y" * 40_000 + "{% endfor %}",
    "{% set a = 'a' * 400000 %}{% for i in range(99999) %}{% if 'b' in a %}{% endif %}{% endfor %}",
    "{% set a = 'a' * 400000 %}{% for i in range(99999) %}{% if a[1:] %}{% endif %}{% endfor %}",
    "{% set a = 'a' * 400000 %}{% for i in range(99999) %}{% if a.upper() %}{% endif %}{% endfor %}",
    "{% set a = 'a' * 400000 %}{% for i in range(99999) %}{% if a is eq(a) %}{% endif %}{% endfor %}",
    *(
        f"{{{{ ('a' * 500000).{method}('ab' ~ 'a' * 20000) }}}}"
        for method in ("rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip")
    ),
    "{{ '\u4e00\u3040\u4e01'.encode('punycode') }}", "{{ ('b' * 500000)|trim('ab' * 9999) }}",
    "{% set count_loop = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    *(
        f"{{% set ns = namespace(a={start}) %}}{{% for i in range(99) %}}{{% set ns.a = {more} %}}{{% endfor %}}{{{{ ns.a }}}}"  # noqa: E501
        for start, more in (
            ("[1]", "[ns.a, ns.a]"), ("[1]", "(ns.a, ns.a)"), ("[1]", "{'a': ns.a, 'b': ns.a}"), ("'ab'", "ns.a ~ ns.a"),  # noqa: E501
            ("'ab'", "ns.a + ns.a"), ("[1]", "dict(a=ns.a, b=ns.a)"), ("'ab'", "'%s%s' % (ns.a, ns.a)"),
            ("'ab'", "'{0}{0}'.format(ns.a)"), ("'ab'", "[ns.a, ns.a]|join"), ("99", "ns.a * ns.a"), ("[1]", "ns.a * 2"),  # noqa: E501
        )
    ),
])  # fmt: skip
def test_expensive_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They must stop below 100 MiB, a tenth of what the smallest would take."""
    monkeypatch.setattr(templates, "STEPS", 20_000)  # tracing makes each step slow
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, OverflowError, RecursionError), match=rf"{LARGE}|recursion"):
            rendered(source, MESSAGES, True, {})
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_nested_namespaces_have_a_short_text() -> None:
    source = (
        "{% set a = namespace() %}"
        + "".join(f"{{% set a = namespace(x=a, y=a, n={i}) %}}" for i in range(99))
        + "{{ a }}"
    )
    assert rendered(source, MESSAGES, True, {}) == "<namespace>"


@pytest.mark.parametrize("source", [
    "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% if loop.last %}!{% endif %}{{ loop.length }}{% endfor %}",  # noqa: E501
    "{{ messages|map(attribute='content')|join(', ') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",  # noqa: E501
    "{{ messages[-1].content.split('e')[0] }}{{ messages[1:]|tojson(indent=2) }}{{ messages[::-1][0].role }}",
    "{{ ('\\n ' * 9999 ~ 'a').strip() }}{{ ('a</think>b' * 99).rsplit('</think>', 1)[-1].lstrip('\\n') }}{{ 'a.b.c'.rfind('.') }}",  # noqa: E501
    "{{ 'a' ~ 1 ~ none ~ 2.5 }}{{ {'a': messages}|length }}{{ 7 // 2 }}{{ 'x %s' % 3 }}{{ 3 in [1, 2, 3] }}{{ -2 ** 2 }}",  # noqa: E501
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }},{% endfor %}{% set a, b = 1, 2 %}{{ a + b }}{{ (1, 'b') }}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}{{ ns.s }}",  # noqa: E501
    "{% macro f(x, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) }}{{ f('a', y=[3]) }}{% set t = f(2) %}{{ t|trim|upper }}",  # noqa: E501
    "{% for m in messages if m.role != 'user' %}{{ loop.index0 }}{{ m.content|replace('e', 'ee') }}{% else %}none{% endfor %}",  # noqa: E501
    "{{ messages[0]['content']|e }}{{ '<i>'|safe }}{{ ['b', 'a']|sort|first }}{{ [1, 2]|sum }}{{ 'abc'|list }}{{ 'a b'|title }}",  # noqa: E501
    "{{ undefined_name }}{{ messages is defined and messages is not string }}{{ none is none }}{{ 'ab' is string }}{{ 5 is odd }}",  # noqa: E501
    "{{ '{:>4}|{}'.format(2, 'x') }}{{ 'a\\nb'|indent(2) }}{{ 'x'.join(['a', 'b']) }}{{ 'ab'.replace('a', 'c') }}{{ 'a'|center(5) }}",  # noqa: E501
    "{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% if a > 2 %}{% break %}{% endif %}{% endfor %}",  # noqa: E501
    "{% set x %}in {{ bos_token }}{% endset %}{{ x }}{{ bos_token + 'a' }}{{ 'no' if not messages else 'yes' }}{{ range(3)|list }}",  # noqa: E501
    "{{ messages|groupby('role')|map('first')|list }}{{ {'b': 1, 'a': 2}|dictsort }}{{ {'b': 1}|items|list }}{{ [3, 1]|max }}",  # noqa: E501
])  # fmt: skip
def test_ordinary_templates_are_rendered_as_by_jinja2(source: str) -> None:
    assert rendered(source, MESSAGES, True, {"bos_token": "<s>"}) == plain(source)


def test_the_limit_grows_with_the_chat() -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 100} for i in range(1000)]
    source = (
        "{% for m in messages %}{% if loop.index0 == messages|length - 1 %}last{% endif %}"
        "{% if m.role == 'user' and '<think>' not in m.content %}<{{ m.role }}>{{ m.content|trim }}\n{% endif %}{% endfor %}"  # noqa: E501
    )
    text = rendered(source, messages, True, {})
    assert text.count("<user>") == 500
    large = [{"role": "user", "content": "a" * 20_000_000}]
    assert (
        len(rendered("{{ messages[0].content|trim }}{{ messages[0]['content'] + '!' }}", large, True, {})) == 40_000_001
    )


def test_a_chain_of_filters_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """jinja2's optimizer would compute it again for each filter."""
    names: list[str] = []
    check = templates._check_call

    def counted(budget: Any, name: str, *rest: Any) -> None:
        names.append(name)
        check(budget, name, *rest)

    monkeypatch.setattr(templates, "_check_call", counted)
    assert (
        rendered("{{ m" + " | upper" * 100 + " }}{{ 'a'" + " | trim" * 100 + " }}", MESSAGES, True, {"m": "x"}) == "Xa"
    )
    assert 200 <= names.count("upper") + names.count("trim") <= 300


@pytest.mark.parametrize("form", ["'%9999d'", "'%d' * 150000", "'%d' * 101"])
def test_wide_and_long_time_formats_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match="the format of a time"):
        rendered("{{ strftime_now(" + form + ") }}", MESSAGES, True, {})
    assert rendered("{{ strftime_now('%d %B %Y %10Y')[:0] }}", MESSAGES, True, {}) == ""


def test_long_templates_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {LONGEST_TEMPLATE} are read"):
        rendered("{{ a }}" * LONGEST_TEMPLATE, MESSAGES, True, {})
