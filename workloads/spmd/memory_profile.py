"""JAX's device memory profile, read without pprof: who holds how many bytes, and which lines made them.

The profile is a gzipped protocol buffer, https://github.com/google/pprof/blob/main/proto/profile.proto; the numbers of
its fields are below. Of protocol buffers' wire format only what it uses is read: varints and length-delimited fields.
"""

import collections
import dataclasses
import gzip
from collections.abc import Iterator

import jax

# Fields of Profile, Sample, Label, Location, Line and Function.
_PROFILE_SAMPLE, _PROFILE_LOCATION, _PROFILE_FUNCTION, _PROFILE_STRING = 2, 4, 5, 6
_SAMPLE_LOCATION, _SAMPLE_VALUE, _SAMPLE_LABEL = 1, 2, 3
_LABEL_KEY, _LABEL_STRING = 1, 2
_LOCATION_ID, _LOCATION_LINE = 1, 4
_LINE_FUNCTION, _LINE_NUMBER = 1, 2
_FUNCTION_ID, _FUNCTION_NAME, _FUNCTION_FILE = 1, 2, 4

_VARINT, _DELIMITED = 0, 2

Message = dict[int, list[int | bytes]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """A line of Python."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allocation:
    """Memory of one origin on one device.

    Attributes:
        device: as JAX prints it.
        kind: "buffer" for arrays, "executable" for compiled programs.
        count, num_bytes: of all allocations of this origin.
        stack: what made them, the innermost call first; empty where JAX does not know.
    """

    device: str
    kind: str
    count: int
    num_bytes: int
    stack: tuple[Frame, ...]


def live_allocations() -> list[Allocation]:
    """What this process holds on its devices now, on every backend."""
    return parse_profile(gzip.decompress(jax.profiler.device_memory_profile()))


def parse_profile(raw: bytes) -> list[Allocation]:
    """The samples of a profile."""
    profile = _fields(raw)
    strings = [_bytes(item).decode(errors="replace") for item in profile[_PROFILE_STRING]]
    functions = {}
    for item in profile[_PROFILE_FUNCTION]:
        function = _fields(_bytes(item))
        name, file = (_number(function, field) for field in (_FUNCTION_NAME, _FUNCTION_FILE))
        functions[_number(function, _FUNCTION_ID)] = strings[name], strings[file]
    frames = {}
    for item in profile[_PROFILE_LOCATION]:
        location = _fields(_bytes(item))
        frames[_number(location, _LOCATION_ID)] = [
            Frame(file=file, line=_number(line, _LINE_NUMBER), function=name)
            for line in map(_fields, map(_bytes, location[_LOCATION_LINE]))
            for name, file in [functions[_number(line, _LINE_FUNCTION)]]
        ]
    return [_allocation(_fields(_bytes(item)), strings, frames) for item in profile[_PROFILE_SAMPLE]]


def _allocation(sample: Message, strings: list[str], frames: dict[int, list[Frame]]) -> Allocation:
    labels = {}
    for item in sample[_SAMPLE_LABEL]:
        label = _fields(_bytes(item))
        labels[strings[_number(label, _LABEL_KEY)]] = strings[_number(label, _LABEL_STRING)]
    count, num_bytes = _numbers(sample[_SAMPLE_VALUE])
    return Allocation(
        device=labels.get("device", ""),
        kind=labels.get("kind", ""),
        count=count,
        num_bytes=num_bytes,
        stack=tuple(frame for place in _numbers(sample[_SAMPLE_LOCATION]) for frame in frames[place]),
    )


def _fields(raw: bytes) -> Message:
    """Values of a message by field; a missing field is an empty list."""
    fields: Message = collections.defaultdict(list)
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        field, wire_type = tag >> 3, tag & 7
        value, position = _varint(raw, position)
        if wire_type == _VARINT:
            fields[field].append(value)
        elif wire_type == _DELIMITED:
            fields[field].append(raw[position : position + value])
            position += value
        else:
            raise ValueError(f"a memory profile has no fields of wire type {wire_type}")
    return fields


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the next begins."""
    value = shift = 0
    while True:
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _numbers(values: list[int | bytes]) -> list[int]:
    """A repeated number, packed or not."""
    return [number for value in values for number in ([value] if isinstance(value, int) else _unpacked(value))]


def _unpacked(raw: bytes) -> Iterator[int]:
    position = 0
    while position < len(raw):
        value, position = _varint(raw, position)
        yield value


def _number(message: Message, field: int) -> int:
    """A number of which there is one; 0 where it is left out, as the format has it."""
    (value,) = message[field] or [0]
    if not isinstance(value, int):
        raise ValueError(f"field {field} of a memory profile is no number")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a message of a memory profile is no bytes")
    return value
