"""Mutual TLS for JAX's coordination service, which otherwise believes whoever connects to be a rank."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax

OPTIONS = {"mtls_key_file": "key", "mtls_cert_file": "chain", "mtls_ca_file": "authority",
           "mtls_peer_uri_prefix": "peer_uri_prefix"}  # fmt: skip


def why_unsupported() -> str:
    """Why this JAX cannot do it; empty if it can."""
    known = inspect.signature(jax.distributed.initialize).parameters
    missing = [option for option in OPTIONS if option not in known]
    return f"JAX {jax.__version__} has no mutual TLS ({', '.join(missing)})" if missing else ""


def coordinator_event(address: str) -> dict[str, Any]:
    """What rank 0 tells when its coordination service listens."""
    return {"type": "coordinator", "address": address, "mutual_tls": not why_unsupported()}


def mutual_tls_options(files: Mapping[str, str]) -> dict[str, str]:
    """What to pass to `jax.distributed.initialize`; empty where this JAX cannot do it.

    Args:
        files: a `launcher.certificates.RankFiles` as JSON.
    """
    return {} if why_unsupported() else {option: files[name] for option, name in OPTIONS.items()}
