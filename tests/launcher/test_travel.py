"""Values between two processes: the classes of a notebook are the same pytrees on the other side, and come home."""

import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from launcher.travel import Pickler, Unpickler
from tests.conftest import ROOT

NOTEBOOK = """
    import dataclasses, io, json, subprocess, sys
    import flax.struct, jax
    from launcher.travel import Pickler, Unpickler

    class Node(flax.struct.PyTreeNode):
        w: jax.Array
        step: int = flax.struct.field(pytree_node=False)

    @flax.struct.dataclass
    class Decorated:
        a: jax.Array
        b: jax.Array

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Registered:
        x: jax.Array
        n: int = dataclasses.field(metadata={"static": True})

        def double(self):
            return Registered(2 * self.x, self.n)

    @jax.tree_util.register_pytree_node_class
    class Own:
        def __init__(self, value):
            self.value = value
        def tree_flatten(self):
            return [self.value], None
        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    def make():
        values = [Node(w=1.0, step=3), Decorated(1.0, 2.0), Registered(4.0, 5).double(), Own(6.0)]
        return jax.tree.map(lambda leaf: leaf + 1, values), [len(jax.tree.leaves(value)) for value in values]

    def dumps(value):
        buffer = io.BytesIO()
        Pickler(buffer, lambda value: None).dump(value)
        return buffer.getvalue()

    if __name__ == "__main__":
        sent = dumps(make)
        assert sent == dumps(make), "equal functions are known by their bytes"
        program = [sys.executable, "-P", "-c", sys.argv[1]]
        other = subprocess.run(program, input=sent, stdout=subprocess.PIPE, check=True)
        values, num_leaves = Unpickler(io.BytesIO(other.stdout), lambda reference: None).load()
        assert [type(value) for value in values] == [Node, Decorated, Registered, Own], values
        print(json.dumps([num_leaves, jax.tree.leaves(values), values[0].step, values[2].n]))
"""

OTHER = """
import io, sys
import jax, launcher.travel as travel
isinstance(1.0, jax.Array)  # as on a rank: it makes JAX 0.10's class one that cannot be pickled
value = travel.Unpickler(sys.stdin.buffer, lambda reference: None).load()()
travel.Pickler(sys.stdout.buffer, lambda value: None).dump(value)
"""


def test_classes_of_a_notebook_are_pytrees_there_and_themselves_here(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(textwrap.dedent(NOTEBOOK))
    done = subprocess.run(
        [sys.executable, "-P", str(tmp_path / "notebook.py"), OTHER], capture_output=True, text=True, check=False,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[1, 2, 1, 1], [2.0, 2.0, 3.0, 9.0, 7.0], 3, 5]


def test_references_stand_for_values_wherever_they_are() -> None:
    held = object()
    buffer = io.BytesIO()
    Pickler(buffer, lambda value: "it" if value is held else None).dump({"deep": [lambda: held]})

    def resolve(reference: Any) -> Any:
        assert reference == "it"
        return 42

    buffer.seek(0)
    assert Unpickler(buffer, resolve).load()["deep"][0]() == 42
    with pytest.raises(TypeError):
        Pickler(io.BytesIO(), lambda value: None).dump(sys.stdout)
