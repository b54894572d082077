"""A page of HTML, by a template: a table of as many rows as the request says, and text that must be escaped."""

import hashlib

import jinja2
from serve import numbers, serve

PAGE = jinja2.Environment(autoescape=True).from_string("""\
<table>
{%- for row in rows %}
<tr class="{{ loop.cycle('odd', 'even') }}"><td>{{ loop.index }}</td>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</table>""")


def answer(seed):
    drawn = numbers(seed)
    rows = [[next(drawn), f"<{next(drawn)}&>"] for _ in range(100 + seed % 9 * 40)]
    page = PAGE.render(rows=rows)
    return {"length": len(page), "digest": hashlib.sha256(page.encode()).hexdigest()}


serve(answer)
