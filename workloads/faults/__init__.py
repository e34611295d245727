"""Faults made on purpose, so that a job's recovery can be tested."""

from workloads.faults.flip_bit import flip_bit

__all__ = ["flip_bit"]
