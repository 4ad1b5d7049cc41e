"""The page at /docs: an OpenAPI document as plain HTML, without scripts or external resources."""

import json
from collections.abc import Mapping
from typing import Any

_TEMPLATE = """
{%- macro type(schema) %}{# a schema in words, with links to the objects that it names #}
  {%- if "$ref" in schema %}
    {%- set name = schema["$ref"].rpartition("/")[2] -%}
    <a href="#{{ name }}"><code>{{ name }}</code></a>
  {%- elif "anyOf" in schema %}
    {%- for each in schema.anyOf %}{{ " or " if not loop.first }}{{ type(each) }}{% endfor %}
  {%- elif "enum" in schema %}
    {%- for each in schema.enum %}{{ " or " if not loop.first }}{{ code(each) }}{% endfor %}
  {%- elif schema.prefixItems %}[
    {%- for each in schema.prefixItems %}{{ ", " if not loop.first }}{{ type(each) }}{% endfor %}]
  {%- elif schema.type == "array" %}list of ({{ type(schema.get("items", {})) }})
  {%- elif schema.additionalProperties is mapping -%}
    object of ({{ type(schema.additionalProperties) }})
  {%- else %}{{ schema.type or "anything" }}
    {%- for key, word in bounds if key in schema %} {{ word }} {{ schema[key] }}{% endfor %}
  {%- endif %}
{%- endmacro %}
{%- macro code(value) %}<code>{{ json(value) }}</code>{% endmacro %}
{%- macro contents(part) %}
  {%- for kind, each in (part.content or {}).items() %}
    {{- "<br>"|safe if not loop.first }}{{ kind }}: {{ type(each.schema) }}
  {%- endfor %}
{%- endmacro -%}
<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>{{ info.title }} {{ info.version }}</title><style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1rem; width: 100% }
td, th { border: 1px solid #ccc; padding: .2rem .5rem; text-align: left; vertical-align: top }
code { font-family: ui-monospace, monospace }
summary { cursor: pointer; padding: .3rem 0 }
summary code { font-weight: bold }
h2 { margin-top: 2rem }
</style></head><body><h1>{{ info.title }} {{ info.version }}</h1>
<p>For programs: <a href="/openapi.json">openapi.json</a>.</p><h2>Routes</h2>
{%- for path, operations in paths.items() %}{% for method, route in operations.items() %}
<details><summary><code>{{ method|upper }} {{ path }}</code> {{ route.summary }}</summary>
{%- if route.security %}<p>Wants an API key.</p>{% endif %}<table>
{%- for each in route.parameters %}
<tr><td>{{ each.in }} parameter <code>{{ each.name }}</code></td>
<td>{{ type(each.schema) }}</td></tr>
{%- endfor %}
{%- if route.requestBody %}
<tr><td>body</td><td>{{ contents(route.requestBody) }}</td></tr>
{%- endif %}
{%- for status, response in route.responses.items() %}
<tr><td>answer ({{ status }})</td><td>{{ contents(response) }}</td></tr>
{%- endfor %}</table></details>
{%- endfor %}{% endfor %}<h2>Objects</h2>
{%- for name, schema in components.schemas|dictsort(true) %}
<h3 id="{{ name }}"><code>{{ name }}</code></h3><p>{{ schema.description }}</p>
{%- if "properties" in schema %}
<table><tr><th>field</th><th>type</th><th>default</th><th>meaning</th></tr>
{%- for field, its in schema.properties.items() %}
<tr><td><code>{{ field }}</code></td><td>{{ type(its) }}</td>
<td>{% if field in schema.required %}required
{%- elif "default" in its %}{{ code(its.default) }}{% endif %}</td>
<td>{{ its.description }}</td></tr>
{%- endfor %}</table>
{%- else %}<p>{{ type(schema) }}</p>{% endif %}
{%- endfor %}</body></html>
"""
_BOUNDS = {"minimum": "from", "maximum": "to", "minLength": "length from", "maxLength": "to"}


def page(document: Mapping[str, Any]) -> str:
    """The HTML page that shows `document`."""
    from jinja2 import Environment  # few gateways show the page

    template = Environment(autoescape=True).from_string(_TEMPLATE)
    return template.render(document, json=json.dumps, bounds=_BOUNDS.items())
