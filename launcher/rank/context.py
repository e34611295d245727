"""The context that a workload receives in a rank: with its faults, its black box, and what the watchdog hears."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.rank.control import Control, Message
from launcher.rank.inject import Injector
from launcher.rank.launches import tell_launches
from launcher.rank.profile import StepProfiler
from launcher.rank.progress import Progress
from workloads.context import Context, Replay
from workloads.exchange import Exchange


def make_context(
    assignment: Message,
    config: Mapping[str, Any],
    injector: Injector,
    control: Control,
    progress: Progress,
    profiler: StepProfiler,
) -> Context:
    """Makes the context of this rank and ties to it whatever is to know of the rank's launches.

    Args:
        assignment: of this rank.
        config: the workload's, equal on all hosts.
        injector: of the faults that this rank makes happen in this attempt.
        control: to the agent.
        progress: hears all that the workload emits, and tells the launches so far.
        profiler: hears it next.
    """

    def emit(event: Message) -> None:
        progress.emit(event)
        profiler.hear(event)

    replay = assignment.get("replay")
    context = Context(
        rank=assignment["rank"],
        num_ranks=assignment["num_ranks"],
        host=assignment["host"],
        seed=assignment["seed"],
        output=Path(assignment["output"]),
        storage=assignment["storage"],
        exchange=Exchange(assignment["rank"], assignment["num_ranks"]),
        emit=emit,
        checkpoint_every=assignment["checkpoint_every"],
        check_every=assignment["check_every"],
        on_step=injector,
        on_saved=injector.saved,
        attempt=assignment["attempt"],
        attempt_id=assignment["attempt_id"],
        keep=assignment["keep"],
        replay=Replay(step=replay["step"], blocks=tuple(replay["blocks"])) if replay else None,
        ask=control.ask if assignment.get("own_disk", False) else None,
        user_folder=Path(assignment.get("user_folder") or ""),
        config=config,
    )
    injector.launches = context.launches
    control.give_saves_to(context.save_requests.ask)
    tell_launches(context.launches, Path(assignment["black_box"]), progress)
    return context
