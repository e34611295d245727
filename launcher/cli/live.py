"""One live line for a job: phase, step, rate, time left, key metric. On a dumb terminal, plain lines."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from cluster.record import Cluster
from launcher.cli.console import is_terminal, seconds
from launcher.snapshots import ENDED, Snapshot, snapshots
from launcher.words import waits_for

PLAIN_PERIOD_S = 5.0
RATE_WINDOW_S = 10.0
SILENT_S = 2.0


def _nothing(snapshot: Snapshot) -> Iterable[str]:
    return ()


def follow(
    cluster: Cluster, job: str, *, to_stderr: bool = False, said: Callable[[Snapshot], Iterable[str]] = _nothing
) -> Snapshot:
    """Shows the job until it ends; returns its last snapshot.

    Args:
        cluster: that it runs on.
        job: name.
        to_stderr: standard output is kept for something else.
        said: hears each snapshot, and gives lines to show that were not shown yet, as the ranks' output.
    """
    return _show(LiveLine(job, said), snapshots(cluster, job), to_stderr)


def _show(line: "LiveLine", snapshots: Iterator[Snapshot], to_stderr: bool) -> Snapshot:
    if to_stderr or not is_terminal():
        return _show_plain(line, snapshots, to_stderr)
    from rich.live import Live
    from rich.text import Text

    last: Snapshot = {}
    with Live(refresh_per_second=10, transient=True) as live:
        for last in snapshots:
            for note in line.news(last):
                live.console.print(Text(note))
            live.update(Text(line.render(last), no_wrap=True, overflow="ellipsis"))
    click.echo(line.render(last))
    return last


def _show_plain(line: "LiveLine", snapshots: Iterator[Snapshot], to_stderr: bool) -> Snapshot:
    shown, shown_at = "", -PLAIN_PERIOD_S
    last: Snapshot = {}
    for last in snapshots:
        for note in line.news(last):
            click.echo(note, err=to_stderr)
        text = line.render(last)
        if text != shown and (last["state"] in ENDED or time.monotonic() - shown_at > PLAIN_PERIOD_S):
            shown, shown_at = text, time.monotonic()
            click.echo(text, err=to_stderr)
    return last


class LiveLine:
    """Turns snapshots into one line; remembers enough of them to know the rate."""

    def __init__(self, job: str, said: Callable[[Snapshot], Iterable[str]] = _nothing):
        self.job = job
        self._said = said
        self._seen: list[tuple[float, int]] = []
        self._notes_shown = 0

    def news(self, snapshot: Snapshot) -> list[str]:
        """What a person should read and has not been shown yet: failures, and what was done about them."""
        notes = snapshot.get("notes", [])[self._notes_shown :]
        self._notes_shown += len(notes)
        return [*self._said(snapshot), *(f"! {note}" for note in notes)]

    def render(self, snapshot: Snapshot) -> str:
        state = snapshot["state"]
        parts = [self.job, state.ljust(9)]
        if snapshot.get("silent_s", 0.0) > SILENT_S:
            parts.append(f"no contact with the head for {seconds(snapshot['silent_s'])}; the job needs none with us")
        elif state == "QUEUED":
            parts.append(waits_for(snapshot.get("waits_for", {})))
        elif state in ("STARTING", "RUNNING", "RECOVERING"):
            parts += self._progress(snapshot["ranks"])
        else:
            parts.append(seconds(snapshot["seconds"]))
        return "  ".join(parts)

    def _progress(self, ranks: list[dict[str, Any]]) -> list[str]:
        if not ranks:
            return ["shipping code and files"]
        slowest = min(ranks, key=lambda rank: rank["step"])
        phase, step, total = slowest["phase"], slowest["step"], slowest["total"]
        if not total:
            return [phase]
        now = time.monotonic()
        self._seen = [(at, done) for at, done in self._seen if now - at < RATE_WINDOW_S and done <= step]
        self._seen.append((now, step))
        parts = [f"{step}/{total}"]
        (start, done), _ = self._seen[0], self._seen[-1]
        if step > done and now > start:
            rate = (step - done) / (now - start)
            parts += [f"{rate:.3g}/s", f"ETA {seconds((total - step) / rate)}"]
        parts += [f"{name} {value:.4g}" for name, value in list(ranks[0]["metrics"].items())[:1]]
        return parts if phase == "run" else [*parts, phase]
