"""Replica integrity: do all copies of what should be equal hold the same bits?

`fingerprint` reduces each copy to 64 bits where it lies, `check` trades the fingerprints between the ranks, `verdict`
votes, `localise` finds the element and its bits; `workloads.cadence` says when a check is worth its cost. No collective
ever touches the data, so that a rank that went astray is named and cannot hang the others.
"""

from workloads.integrity.check import ReplicaChecker, check_replicas
from workloads.integrity.verdict import Difference, Divergence, Verdict

__all__ = ["Difference", "Divergence", "ReplicaChecker", "Verdict", "check_replicas"]
