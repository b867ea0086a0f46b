"""Write the page of the MacroInstance from its CustomResourceDefinition."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tables import code, prose, table

DEFINITION = Path(__file__).parents[2] / "crds" / "macroinstances.yaml"
HEAD = """# MacroInstance

API group `{group}`, version `{version}`. `kubectl explain macroinstance.spec` shows the same texts.
Each object's fields are in a table under its path.

"""
Schema = Mapping[str, Any]
MAX_PATTERN = 30
"""Longest regular expression that is shown; the description explains longer ones."""


def page() -> str:
    definition = yaml.safe_load(DEFINITION.read_text())["spec"]
    version = definition["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    return (
        HEAD.format(group=definition["group"], version=version["name"])
        + "".join(_section("spec", schema["spec"], {}))
        + "".join(_section("status", schema["status"], {}))
        + "## Columns of kubectl get\n\n"
        + table(
            ("column", "shows", "from"),
            (
                (column["name"], column.get("description", ""), code(column["jsonPath"]))
                for column in version["additionalPrinterColumns"]
            ),
        )
    )


def _section(path: str, schema: Schema, shown: dict[int, str]) -> Iterator[str]:
    """Yield the table of an object's fields, then those of the objects in it.

    shown: paths of the tables so far, by the identities of their fields, which YAML aliases share.
    """
    yield f"## {path}\n\n{prose(schema.get('description', ''))}\n\n"
    required = schema.get("required", ())
    fields = schema["properties"]
    if (first := shown.setdefault(id(fields), path)) != path:
        yield f"It has the fields of `{first}`.\n\n"
        return
    yield table(
        ("field", "type", "default", "allowed", "description"),
        (
            (
                code(name),
                _type(field),
                "required" if name in required else _default(field),
                _allowed(field),
                prose(field.get("description", "")),
            )
            for name, field in fields.items()
        ),
    )
    yield from ("\n", _rules(schema))
    for name, field in fields.items():
        if _object(field):
            yield from _section(f"{path}.{name}", field, shown)
        elif _object(field.get("items", {})):
            yield from _section(f"{path}.{name}[]", field["items"], shown)


def _object(field: Schema) -> bool:
    return "properties" in field


def _type(field: Schema) -> str:
    if field.get("type") == "array":
        return "list of " + _type(field["items"])
    return field.get("type", "any")


def _default(field: Schema) -> str:
    default = field.get("default")
    return "" if default in (None, {}) else code(_text(default))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _allowed(field: Schema) -> str:
    if choices := field.get("enum"):
        return ", ".join(code(_text(choice)) for choice in choices)
    bounds = []
    if "minimum" in field:
        least = "more than" if field.get("exclusiveMinimum") else "≥"
        bounds.append(f"{least} {field['minimum']}")
    if "maximum" in field:
        most = "less than" if field.get("exclusiveMaximum") else "≤"
        bounds.append(f"{most} {field['maximum']}")
    pattern = field.get("pattern", "")
    if pattern and len(pattern) <= MAX_PATTERN:
        bounds.append(code(pattern))
    return ", ".join(bounds)


def _rules(schema: Schema) -> str:
    rules = [
        f"- `{rule['fieldPath'].lstrip('.')}` {prose(rule['message'])}.\n"
        for rule in schema.get("x-kubernetes-validations", ())
        if "fieldPath" in rule
    ]
    return "".join(rules) + "\n" if rules else ""
