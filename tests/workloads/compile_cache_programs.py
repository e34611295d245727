"""Runs on ranks: the transformer with a compilation cache of each rank's own."""

from pathlib import Path
from typing import Any

import jax

from launcher.rank.compile_cache import use_compile_cache
from workloads.agreement import programs
from workloads.context import Context
from workloads.transformer.config import Config
from workloads.transformer.run import run

CACHE_HITS = "/jax/compilation_cache/cache_hits"
REQUESTS = "/jax/compilation_cache/compile_requests_use_cache"


def transformer(context: Context, *, cache: str | None, steps: int) -> dict[str, Any]:
    """Trains a little; returns the digest, the seconds of compiling, and how often the cache was asked and had it."""
    seen: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
    why = use_compile_cache(str(Path(cache) / f"rank-{context.rank}") if cache else None)
    programs.install(context.exchange, host=context.host, emit=context.emit)
    result = run(Config(steps=steps, eval_every=steps, sample_length=8), context)
    return {
        "digest": result.result_digest,
        "compile_s": result.metrics["compile_s"],
        "requests": seen.count(REQUESTS),
        "hits": seen.count(CACHE_HITS),
        "why": why,
    }
