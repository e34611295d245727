"""Reads a cluster file; each mistake is one line: file:line, key, what is allowed, the nearest match.

The YAML is composed but not constructed: text is taken as it is written (`DEBUG: yes` is "yes" and `VERSION: 1.10` is
"1.10", where YAML 1.1 would make them True and 1.1), numbers are plain decimal digits, and every node knows its line.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import ClusterConfigError
from cluster.launcher_file import with_machines
from cluster.launcher_spec import is_launcher
from cluster.spec import ClusterSpec

_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBERS = ("num_hosts", "num_slices", "devices_per_host", "spares", "min_hosts")
_SWITCHES = ("emulate", "provider.spot", "provider.os_login", "provider.use_internal_ips")
_MAPPINGS = ("provider", "env")
_LISTS = ("provider.hosts", "provider.adopt")
_NULL = "tag:yaml.org,2002:null"

Lines = dict[str, int]


def load(path: str | Path) -> ClusterSpec:
    """The cluster that a file describes.

    Args:
        path: a YAML file as in examples/laptop.yaml.

    Raises:
        ClusterConfigError: the first mistake, as `file:line: key: what is allowed`, in one line.
    """
    root = _compose(path)
    lines: Lines = {}
    try:
        values = _read_file(root, lines)
        if is_launcher(values.get("provider")):
            values = with_machines(values, Path(path).parent)
        return ClusterSpec.from_json(values)
    except ClusterConfigError as error:
        line = lines.get(error.key) or lines.get(error.key.rpartition(".")[0]) or _line(root)
        raise ClusterConfigError(error.key, error.problem, f"{path}:{line}") from None


def _compose(path: str | Path) -> yaml.MappingNode:
    """The file's one document."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterConfigError("", f"cannot be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ClusterConfigError("", "is not UTF-8 text", f"{path}:{line}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(", ".join(part for part in (error.context, error.problem) if part).split())
        raise ClusterConfigError("", f"not YAML: {problem}", f"{path}:{line}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ClusterConfigError("", f"not YAML: {error.reason}", f"{path}:{line}") from None
    if root is None:
        raise ClusterConfigError("", "is empty; a cluster file begins with `name: NAME`", f"{path}:1")
    if not isinstance(root, yaml.MappingNode):
        raise ClusterConfigError("", f"must be keys and values, not {_words(root)}", f"{path}:{_line(root)}")
    return root


def _read_file(root: yaml.MappingNode, lines: Lines) -> dict[str, Any]:
    """Plain values of all keys; what they mean is checked by `ClusterSpec`."""
    values: dict[str, Any] = {}
    for key, node in _pairs(root, "", lines).items():
        if key in _MAPPINGS:
            values[key] = _mapping(key, node, lines)
        elif key in _NUMBERS:
            values[key] = _number(node)
        elif key in _SWITCHES:
            values[key] = _switch(node)
        elif key == "storage_path" and node.tag == _NULL:
            values[key] = None
        else:
            values[key] = _text(node)
    return values


def _pairs(mapping: yaml.MappingNode, prefix: str, lines: Lines) -> dict[str, yaml.Node]:
    """`{key: node}`, and the line of each dotted key into `lines`."""
    pairs: dict[str, yaml.Node] = {}
    for key_node, value_node in mapping.value:
        line = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            where = prefix.rstrip(".")
            lines[where] = line
            raise ClusterConfigError(where, f"a key must be a word, not {_words(key_node)}")
        key = f"{prefix}{key_node.value}"
        if key_node.value in pairs:
            first, lines[key] = lines[key], line
            raise ClusterConfigError(key, f"is given twice, first in line {first}")
        lines[key] = line
        pairs[key_node.value] = value_node
    return pairs


def _mapping(key: str, node: yaml.Node, lines: Lines) -> Any:
    """A mapping of texts, switches and lists of texts; anything else is passed on as found, to be refused."""
    if key == "env" and node.tag == _NULL:
        return {}
    if not isinstance(node, yaml.MappingNode):
        return _text(node)
    return {name: _entry(f"{key}.{name}", value) for name, value in _pairs(node, f"{key}.", lines).items()}


def _entry(key: str, node: yaml.Node) -> Any:
    if key in _LISTS:
        return _texts(node)
    return _switch(node) if key in _SWITCHES else _text(node)


def _texts(node: yaml.Node) -> Any:
    return [_text(item) for item in node.value] if isinstance(node, yaml.SequenceNode) else _text(node)


def _text(node: yaml.Node) -> Any:
    """The text as it is written; for what is no text, something that every check refuses and shows in words."""
    if isinstance(node, yaml.ScalarNode) and node.tag != _NULL:
        return node.value
    return Found(_words(node))


def _number(node: yaml.Node) -> Any:
    text = _text(node)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return int(text) if plain and isinstance(text, str) and _WHOLE_NUMBER.fullmatch(text) else text


def _switch(node: yaml.Node) -> Any:
    text = _text(node)
    return {"true": True, "false": False}.get(text, text) if isinstance(text, str) else text


class Found:
    """Stands for a value that no setting accepts; shown in words where it is refused."""

    def __init__(self, words: str):
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _words(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "nothing" if node.tag == _NULL else repr(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
