"""Checkpoints that can be believed: written in the background, committed by a manifest, verified bit by bit.

`leaves` describes and fingerprints a tree, `saver` writes with Orbax and commits, `restore` reads back and falls back
to the newest step that is good. How a step lies on disks: `workloads.storage`.
"""

from workloads.checkpoint.restore import Restored, restore, resume
from workloads.checkpoint.saver import Saver, save
from workloads.storage.folders import latest_step

__all__ = ["Restored", "Saver", "latest_step", "restore", "resume", "save"]
