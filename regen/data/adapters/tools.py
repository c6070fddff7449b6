"""The tools of a row -> JSON text of a list in OpenAI's form. Pure.

A list, or its JSON text. Tools in OpenAI's form stay as they are, in their order: the template prints them. Bare
functions are wrapped, and names of types that JSON Schema does not have (`dict`, `float`, `str`) are replaced by those
that it has, where a schema names a type and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.adapters.given import Reading, parsed, type_name
from regen.data.reasons import Note, Reason, refuse

_TYPES: Mapping[str, str] = {
    "dict": "object",
    "hashmap": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "arraylist": "array",
    "float": "number",
    "double": "number",
    "int": "integer",
    "long": "integer",
    "short": "integer",
    "byte": "integer",
    "bool": "boolean",
    "str": "string",
    "char": "string",
}
_JSON_TYPES = frozenset({"object", "array", "number", "integer", "boolean", "string", "null"})
_ANY = "any"
_SCHEMAS_BY_NAME = ("properties", "$defs", "definitions", "patternProperties")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not")


def tools_json(given: object, reading: Reading) -> str | None:
    """None where there are none. Refused: what is no list of objects, or cannot be JSON."""
    if given is None or given == "" or given == []:
        return None
    tools = parsed(given, "tools", Reason.BAD_TOOLS) if isinstance(given, str) else given
    if isinstance(tools, Mapping) and "name" in tools:
        tools = [tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        refuse(Reason.BAD_TOOLS, f"tools is {type_name(tools)}, not a list of objects")
    try:
        canonical = [_tool(tool, reading) for tool in tools]
    except RecursionError:
        refuse(Reason.BAD_TOOLS, "tools cannot be JSON: nested too deeply")
    for number, tool in enumerate(canonical):
        _require_callable(tool, number)
    return reading.json_text(canonical, "tools", Reason.BAD_TOOLS) if canonical else None


def _require_callable(tool: dict[str, object], number: int) -> None:
    """What an engine's parser of calls would refuse, and then read no call of this row at all."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        refuse(Reason.BAD_TOOLS, f"tool {number} has no function with a name")
    if isinstance(function, dict) and not isinstance(function.get("parameters"), dict | None):
        refuse(Reason.BAD_TOOLS, f"tool {number}: parameters is {type_name(function['parameters'])}, not an object")


def _tool(tool: dict[str, object], reading: Reading) -> dict[str, object]:
    function = tool.get("function")
    if isinstance(function, dict):
        renamed = _function(function, reading)
        return tool if renamed is function else {**tool, "function": renamed}
    if "name" in tool and tool.get("type") in (None, "function"):
        reading.note(Note.TOOLS_WRAPPED)
        bare = {key: value for key, value in tool.items() if key != "type"}
        return {"type": "function", "function": _function(bare, reading)}
    return tool


def _function(function: dict[str, object], reading: Reading) -> dict[str, object]:
    """The same object where nothing is to be replaced."""
    parameters = function.get("parameters")
    if not isinstance(parameters, dict):
        return function
    schema = _schema(_whole(parameters))
    if schema == parameters:
        return function
    reading.note(Note.TOOL_TYPES_RENAMED)
    return {**function, "parameters": schema}


def _whole(parameters: dict[str, object]) -> dict[str, object]:
    """Some datasets give the properties alone, each an object, without the object that they belong to."""
    is_schema = isinstance(parameters.get("type"), str | list) or any(
        key in parameters for key in ("properties", "$ref")
    )
    if is_schema or not parameters or not all(isinstance(value, dict) for value in parameters.values()):
        return parameters
    return {"type": "object", "properties": parameters}


def _schema(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    made: dict[str, object] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            if value.lower() != _ANY:
                made[key] = _type(value)
        elif key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            made[key] = {name: _schema(inner) for name, inner in value.items()}
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            made[key] = [_schema(inner) for inner in value]
        elif key in _SCHEMAS:
            made[key] = _schema(value)
        else:
            made[key] = value
    return made


def _type(name: str) -> str:
    """Python's and Java's names, also as `str, optional`; what is not known stays."""
    bare = name.partition(",")[0].strip().lower()
    if name in _JSON_TYPES:
        return name
    return bare if bare in _JSON_TYPES else _TYPES.get(bare, name)
