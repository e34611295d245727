"""How a function of the user's is named: `./my_file.py:run` or `my_pkg.my_module:run`. Imports no JAX."""

import dataclasses
import re
from pathlib import PurePosixPath

TARGET = re.compile(r"(?P<place>[^:\0]+\.py|[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Where a function is.

    Attributes:
        place: a file's path relative to the user's folder, or a module's name.
        function: its name there.
    """

    place: str
    function: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def stem(self) -> str:
        """`my_module` of `src/my_module.py` and of `my_pkg.my_module`."""
        return PurePosixPath(self.place).stem if self.is_file else self.place.rpartition(".")[2]


def parse_target(text: str) -> Target | None:
    """The function that is meant, or None where `text` names no function."""
    match = TARGET.fullmatch(text)
    if match is None:
        return None
    return Target(place=match["place"].removeprefix("./"), function=match["function"])
