"""Checkpoints that can be believed: written in the background, committed by a manifest, verified bit by bit.

`leaves` describes and fingerprints a tree, `folders` names and finds steps, `manifest` says what a step must hold,
`saver` writes with Orbax and commits, `restore` reads back and falls back to the newest step that is good.
"""

from workloads.checkpoint.folders import latest_step
from workloads.checkpoint.restore import Restored, restore, resume
from workloads.checkpoint.saver import Saver, save

__all__ = ["Restored", "Saver", "latest_step", "restore", "resume", "save"]
