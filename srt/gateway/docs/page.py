"""The page at /docs: an OpenAPI document as plain HTML, without scripts or external resources."""

import html
import json
from collections.abc import Mapping
from typing import Any

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1rem; width: 100% }
td, th { border: 1px solid #ccc; padding: .2rem .5rem; text-align: left; vertical-align: top }
code { font-family: ui-monospace, monospace }
summary { cursor: pointer; padding: .3rem 0 }
summary code { font-weight: bold }
h2 { margin-top: 2rem }
"""
_REF = "#/components/schemas/"

Schema = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """The HTML page that shows `document`."""
    title = f"{document['info']['title']} {document['info']['version']}"
    routes = [
        _route(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    objects = [_object(name, c) for name, c in sorted(document["components"]["schemas"].items())]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{_text(title)}</h1><p>For programs: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"<h2>Routes</h2>{''.join(routes)}<h2>Objects</h2>{''.join(objects)}</body></html>"
    )


def _route(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = []
    for parameter in operation.get("parameters", []):
        where = f"{parameter['in']} parameter <code>{_text(parameter['name'])}</code>"
        rows.append((where, _type(parameter["schema"])))
    if "requestBody" in operation:
        rows.append(("body", _contents(operation["requestBody"])))
    for status, response in operation["responses"].items():
        rows.append((f"answer ({_text(status)})", _contents(response)))
    table = "".join(f"<tr><td>{name}</td><td>{kind}</td></tr>" for name, kind in rows)
    key = "<p>Wants an API key.</p>" if "security" in operation else ""
    return (
        f"<details><summary><code>{method.upper()} {_text(path)}</code> "
        f"{_text(operation['summary'])}</summary>{key}<table>{table}</table></details>"
    )


def _contents(part: Mapping[str, Any]) -> str:
    contents = part.get("content", {})
    return "<br>".join(f"{_text(m)}: {_type(c['schema'])}" for m, c in contents.items())


def _object(name: str, schema: Schema) -> str:
    if "properties" not in schema:
        table = f"<p>{_type({k: v for k, v in schema.items() if k != 'description'})}</p>"
    else:
        rows = [_field(n, s, schema) for n, s in schema["properties"].items()]
        head = "<tr><th>field</th><th>type</th><th>default</th><th>meaning</th></tr>"
        table = f"<table>{head}{''.join(rows)}</table>"
    about = _text(schema.get("description", ""))
    return f"<h3 id='{_text(name)}'><code>{_text(name)}</code></h3><p>{about}</p>{table}"


def _field(name: str, schema: Schema, owner: Schema) -> str:
    if name in owner.get("required", []):
        default = "required"
    elif "default" in schema:
        default = f"<code>{_text(json.dumps(schema['default']))}</code>"
    else:
        default = ""
    about = _text(schema.get("description", ""))
    cells = (f"<code>{_text(name)}</code>", _type(schema), default, about)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _type(schema: Schema) -> str:
    """A schema in words, with links to the objects that it names."""
    if "$ref" in schema:
        name = _text(schema["$ref"].removeprefix(_REF))
        return f"<a href='#{name}'><code>{name}</code></a>"
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{_text(json.dumps(v))}</code>" for v in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems")
        if items:
            return "[" + ", ".join(_type(item) for item in items) + "]"
        return f"list of ({_type(schema.get('items') or {})})"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping):
        return f"object of ({_type(values)})"
    return _text(str(kind or "anything")) + _bounds(schema)


def _bounds(schema: Schema) -> str:
    words = {"minimum": "from", "maximum": "to", "minLength": "length from", "maxLength": "to"}
    return "".join(f" {word} {schema[key]}" for key, word in words.items() if key in schema)


def _text(text: str) -> str:
    return html.escape(text)
