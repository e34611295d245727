"""Curves for TensorBoard, beside `metrics.jsonl`: what rank 0 reports, in an event file of each attempt's own."""

import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

EVENT_FILES = "events.out.tfevents."  # how TensorBoard knows them


class EventFile:
    """Writes the event file of one attempt; whatever goes wrong with it, the job goes on.

    A file is begun with the first report, in a thread: tensorboardX needs up to a second to import. TensorBoard is told
    that the attempt starts at that step, so that of what an earlier attempt computed beyond it nothing is shown.

    Args:
        folder: the job's.
        attempt: number of the attempt.
        config: what the job is, shown as text.

    Attributes:
        failure: why nothing more is written, or ''.
    """

    def __init__(self, folder: Path, attempt: int, config: Mapping[str, Any]):
        self.failure = ""
        self._path = folder / f"{EVENT_FILES}{time.time():.0f}.attempt-{attempt:03d}"
        self._config = config
        self._file: IO[bytes] | None = None
        self._worker = ThreadPoolExecutor(1, "event-file")

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one point to the curve of each metric, at this moment."""
        self._worker.submit(self._add, step, time.time(), dict(metrics))

    def close(self) -> None:
        """Returns when everything is written."""
        self._worker.shutdown()
        if self._file is not None:
            self._file.close()

    def _add(self, step: int, unix_s: float, metrics: Mapping[str, float]) -> None:
        if self.failure:
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
                self._begin(step, unix_s)
            self._add_values(step, unix_s, metrics)
        except Exception as error:  # noqa: BLE001 - curves are an extra; what is lost is still in metrics.jsonl
            self.failure = f"{type(error).__name__}: {error}"

    def _begin(self, step: int, unix_s: float) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import text

        rows = "".join(f"| {name} | {value} |\n" for name, value in self._config.items())
        self._append(Event(wall_time=unix_s, file_version="brain.Event:2"))
        self._append(Event(wall_time=unix_s, step=step, session_log=SessionLog(status=SessionLog.START)))
        self._append(Event(wall_time=unix_s, step=step, summary=text("config", f"| | |\n|---|---|\n{rows}")))

    def _add_values(self, step: int, unix_s: float, metrics: Mapping[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append(Event(wall_time=unix_s, step=step, summary=Summary(value=values)))

    def _append(self, event: Any) -> None:
        """One record of a TFRecord file, in one write. The library's own writers sync the disk or keep a queue."""
        from tensorboardX.record_writer import masked_crc32c

        assert self._file is not None
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        self._file.write(
            length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
        )
