"""Reads a step through Orbax, and tells why it could not: damage, a storage that fails, or what was asked.

A step counts as damaged only where that is shown: an error of what was asked, taken for damage, would cost the work.
"""

import dataclasses
from typing import Any, Literal

import jax
from etils import epath

from workloads.checkpoint.saver import make_handler
from workloads.checkpoint.stored import from_stored, to_stored
from workloads.context import Context
from workloads.errors import DamageError
from workloads.storage.folders import STATE
from workloads.storage.index import READ_ERRORS, cannot_be_read, check_arrays, is_unread
from workloads.storage.manifest import Manifest

PyTree = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a step is not used.

    Attributes:
        why: in words.
        kind: "damaged": it is known not to be good. "unread": it could not be read, and may be good. "raised": reading
            it raised what may come of damage, or of what was asked.
        step: which, once that counts.
    """

    why: str
    kind: Literal["damaged", "unread", "raised"]
    step: int = 0


_KINDS = ["damaged", "unread", "raised"]  # what one rank knows for certain comes first


def load(folder: epath.Path, wanted: PyTree) -> tuple[PyTree, Problem | None]:
    """The arrays of a step, laid out as asked; not yet verified.

    Args:
        folder: of the step.
        wanted: without typed keys.
    """
    import orbax.checkpoint as ocp

    arguments = ocp.args.StandardRestore(jax.tree.map(to_stored, wanted))
    try:
        found = make_handler().restore(folder / STATE, args=arguments)
    except READ_ERRORS as error:
        met: BaseException = error
    except Exception as error:  # Orbax raises `Exception` itself from what TensorStore did, and from a MemoryError
        if not isinstance(error.__cause__, READ_ERRORS):
            raise
        met = error.__cause__
    else:
        return jax.tree.map(from_stored, wanted, found), None
    why = cannot_be_read("the data", met)
    return None, Problem(why=why, kind="unread" if is_unread(met) else "raised")


def look_for_damage(context: Context, folder: epath.Path, manifest: Manifest, met: Problem | None) -> Problem | None:
    """Reads what is in the files, whatever was asked, and says what cannot be read.

    Args:
        context: of the job.
        folder: of the step.
        manifest: of the step.
        met: by this rank as it read: it looks at everything, as its host may see other files; the others at a part.
    """
    part, num_parts = (0, 1) if met else (context.rank, context.num_ranks)
    try:
        check_arrays(folder, list(manifest.leaves), part=part, num_parts=num_parts)
    except DamageError as error:
        return Problem(why=str(error), kind="damaged")
    except OSError as error:
        return Problem(why=str(error), kind="unread")
    return None


def agree_on_problem(context: Context, topic: str, problem: Problem | None) -> Problem | None:
    """The problem of the first rank that has one; damage, if any has met that, for then the step is no good."""
    mine = [problem.kind, problem.why, context.host] if problem else None
    met = [(rank, *said) for rank, said in enumerate(context.exchange.all_gather(topic, mine)) if said]
    if not met:
        return None
    rank, kind, why, host = min(met, key=lambda one: _KINDS.index(one[1]))
    return Problem(why=f"rank {rank} on host {host}: {why}" if rank or kind != "damaged" else why, kind=kind)
