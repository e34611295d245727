"""Runs on ranks: a whole training; loss curves on several meshes; gradients against a plain reference."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from workloads.context import Context
from workloads.errors import InputMismatchError, ReplicaDivergenceError
from workloads.params import parse
from workloads.result import digest_arrays
from workloads.transformer.config import Config
from workloads.transformer.corpus import write_default
from workloads.transformer.data import Text, read_text, train_batches
from workloads.transformer.loop import Progress
from workloads.transformer.run import run
from workloads.transformer.train import Trainer

PyTree = Any

SMALL = {"num_layers": "2", "width": "64", "ff_width": "128", "context_length": "32", "eval_batches": "3"}


def train(context: Context, settings: dict[str, str]) -> dict[str, Any]:
    """The whole workload on the default text."""
    result = run(parse(Config, {**SMALL, **settings}), context)
    return {
        "metrics": dict(result.metrics),
        "diagnostics": dict(result.diagnostics),
        "digest": result.result_digest,
        "files": sorted(str(path.relative_to(context.output)) for path in context.output.rglob("*.*")),
        "memory_stats": jax.local_devices()[0].memory_stats() is not None,
    }


def train_with_a_flip_in_the_curves(context: Context, settings: dict[str, str]) -> dict[str, Any]:
    """One bit flips in the memory of the last host, in the loss of the second step; what is told."""
    curves = Progress.curves

    def flip(self: Progress) -> Any:
        found = curves(self)
        if context.rank == context.num_ranks - 1:
            found["train"]["loss"][1:2].view(np.uint32)[:] ^= 1 << 20
        return found

    Progress.curves = flip  # type: ignore[method-assign]
    try:
        run(parse(Config, {**SMALL, **settings}), context)
    except ReplicaDivergenceError as error:
        return {"said": str(error), "suspects": error.suspects}
    return {}


def train_with_other_text_on_one_rank(context: Context, odd: int) -> str:
    """What the user is told when one host has another file."""
    path = write_default(context.output)
    if context.rank == odd:
        path.write_text(path.read_text(encoding="utf-8") + "#", encoding="utf-8")
    try:
        run(parse(Config, {**SMALL, "batch_size": "12", "data": str(path)}), context)
    except InputMismatchError as error:
        assert error.cause == "refused"  # it would end so again
        return str(error)
    return "nothing"


def curves(context: Context, meshes: list[str], steps: int) -> dict[str, Any]:
    """The loss of each step, and a digest of the final parameters, for each mesh; `1x1` uses one device."""
    found = {}
    for name in meshes:
        trainer, text = _trainer(context, name, {"steps": str(steps), "steps_per_dispatch": str(steps)})
        state = jax.jit(trainer.init_state, out_shardings=trainer.state_shardings)(context.base_key)
        batches = train_batches(text, trainer.config, context.seed, 0, trainer.mesh)
        program = jax.jit(trainer.train_chunk, donate_argnums=0, out_shardings=(trainer.state_shardings, None))
        state, values = program(state, batches, np.int32(steps))
        found[name] = {
            "loss": [float(loss) for loss in np.asarray(values["loss"])],
            "digest": digest_arrays(_flat(context.gather(state["params"]))),
        }
    return found


def gradient_errors(context: Context, meshes: list[str]) -> dict[str, dict[str, float]]:
    """|gradient - reference| / |reference| by parameter, for each mesh in float64, and the last in float32 too.

    The reference is written out below: whole arrays on one device, jax.grad of one function, and no mesh.
    """
    errors = {}
    for name, x64 in [(name, True) for name in meshes] + [(meshes[-1], False)]:
        settings = {"z_loss": "0.01", "num_layers": "1", "x64": str(x64)}  # a z-loss large enough to be seen
        trainer, text = _trainer(context, name, settings)
        params = jax.jit(trainer.init_state, out_shardings=trainer.state_shardings)(context.base_key)["params"]
        params = jax.tree.map(lambda leaf: leaf * 4, params)  # away from the nearly linear start
        windows = train_batches(text, trainer.config, context.seed, 0, trainer.mesh)[0]
        weights = jnp.asarray(np.arange(windows.size - len(windows)).reshape(len(windows), -1) % 5 > 0, trainer.dtype)
        grads = jax.jit(lambda *args, trainer=trainer: trainer.gradients(*args)[0])(params, windows, weights)
        whole = jax.tree.map(np.asarray, (params, windows, weights))
        reference = jax.jit(jax.grad(reference_loss), static_argnums=(3, 4))(*whole, text.vocab_size, 0.01)
        got, expected = _flat(jax.tree.map(np.asarray, grads)), _flat(jax.tree.map(np.asarray, reference))
        assert got.keys() == expected.keys()
        errors[f"{name} {trainer.dtype}"] = {
            key: float(np.linalg.norm(got[key] - expected[key]) / np.linalg.norm(expected[key])) for key in expected
        }
    return errors


def reference_loss(params: PyTree, windows: jax.Array, weights: jax.Array, vocab_size: int, z_loss: float) -> jax.Array:
    """The same network and loss from their textbook definitions."""
    tokens, targets = windows[:, :-1], windows[:, 1:]
    x = params["embedding"][tokens] + params["positions"][: tokens.shape[1]]
    causal = np.tril(np.ones((tokens.shape[1],) * 2, bool))
    for layer in range(len(params["blocks"])):
        block = params["blocks"][layer]
        q, k, v = jnp.einsum("btd,dchk->cbhtk", _norm(x, block["attention_norm"]), block["qkv"])
        scores = jnp.where(causal, jnp.einsum("bhqk,bhsk->bhqs", q, k) / math.sqrt(q.shape[-1]), -jnp.inf)
        mixed = jnp.einsum("bhqs,bhsk->bqhk", jax.nn.softmax(scores), v)
        x = x + jnp.einsum("bqhk,hkd->bqd", mixed, block["attention_out"])
        hidden = jax.nn.gelu(_norm(x, block["ff_norm"]) @ block["ff_in"])
        x = x + hidden @ block["ff_out"]
    logits = (_norm(x, params["final_norm"]) @ params["embedding"].T)[..., :vocab_size]
    log_z = jax.scipy.special.logsumexp(logits, axis=-1)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (weights * (log_z - target_logits + z_loss * log_z**2)).sum() / weights.sum()


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def _trainer(context: Context, name: str, settings: dict[str, str]) -> tuple[Trainer, Text]:
    config = parse(Config, {**SMALL, **settings, "mesh": name})
    sizes = [int(size) for size in name.split("x")]
    whole = {"data": sizes[0], "model": sizes[1]}
    one = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), tuple(whole), axis_types=(AxisType.Auto,) * 2)
    text = read_text(write_default(context.output), config.context_length)
    mesh = one if name == "1x1" else context.mesh(whole)
    trainer = Trainer(config=config, mesh=mesh, vocab_size=text.vocab_size, padded_vocab_size=text.padded_vocab_size)
    return trainer, text


def _flat(tree: PyTree) -> dict[str, np.ndarray]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
