"""Replica integrity: do all copies of what should be equal hold the same bits?

`fingerprint` reduces each copy to 64 bits where it lies, `check` trades the fingerprints between the ranks, `verdict`
votes. No collective ever touches the data, so that a rank that went astray is named and cannot hang the others.
"""

from workloads.integrity.check import check_replicas
from workloads.integrity.verdict import Divergence, Verdict

__all__ = ["Divergence", "Verdict", "check_replicas"]
