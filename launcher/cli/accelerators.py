"""`accelerators`: what `accelerator` in a cluster file may be, what follows from it, and what it costs."""

import dataclasses
import textwrap

import click

from cluster.accelerator_table import GPU_MODELS, TPU_GENERATIONS
from cluster.accelerators import MAX_GPUS_PER_HOST, Accelerator, tpu_names
from cluster.prices import all_rows, tpu_rental
from launcher.cli.console import next_commands, show_json, table


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True)
def accelerators(name: str | None, as_json: bool) -> None:
    """List the accelerators that a cluster file may name, or all that is known of one: tpu-v5e-16, H100:8."""
    if name is not None:
        _show(Accelerator.parse(name), as_json)
    elif as_json:
        names = [*tpu_names(), *(f"{model}:1" for model in GPU_MODELS)]
        show_json([dataclasses.asdict(Accelerator.parse(one)) for one in names])
    else:
        _list()


def _list() -> None:
    tpus = []
    for generation, tpu in TPU_GENERATIONS.items():
        names = tpu_names(generation)
        sizes = f"{names[0]} to {names[-1].rpartition('-')[2]}"
        memory = f"{tpu.hbm_gib_per_chip / tpu.devices_per_chip:g}"
        tpus.append([sizes, f"{tpu.devices_per_chip}", memory, tpu.runtime_version or "none"])
    click.echo(table(["TPU slice", "JAX devices/chip", "GiB/device", "image of a TPU VM"], tpus))
    click.echo("  v5e means v5litepod, tpu7x tpu-v7x; without image: not by the Cloud TPU API")
    gpus = [[name, " or ".join(map(str, gpu.memory_gb)) or "unknown"] for name, gpu in GPU_MODELS.items()]
    click.echo("\n" + table([f"GPU, MODEL:1 to :{MAX_GPUS_PER_HOST}", "GB"], gpus))
    next_commands("spmd-launch accelerators tpu-v5e-16", "spmd-launch accelerators H100:8")


def _show(accelerator: Accelerator, as_json: bool) -> None:
    if as_json:
        show_json(dataclasses.asdict(accelerator))
        return
    memory = " or ".join(f"{value:g}" for value in accelerator.memory_gb_per_device) or "unknown"
    facts = {
        "hosts of a slice": f"{accelerator.hosts_per_slice}" if accelerator.tpu_type else "",
        "topology": accelerator.topology,
        "chips of a host": f"{accelerator.chips_per_host}" if accelerator.tpu_type else "",
        "JAX devices of a host": f"{accelerator.devices_per_host or 'as devices_per_host says'}",
        "JAX calls them": " or ".join(accelerator.device_kinds),
        "GB of a device": memory if accelerator.ray_type else "",
        "Ray calls it": accelerator.ray_type,
        "image of a TPU VM": accelerator.runtime_version or "",
    }
    click.echo(accelerator.name)
    for key, value in facts.items():
        if value:
            click.echo(f"  {key:<23}{value}")
    for source in [*accelerator.sources, *_prices(accelerator)]:
        click.echo(textwrap.fill(source, 78, initial_indent="  source: ", subsequent_indent="    ",
                                 break_on_hyphens=False, break_long_words=False))  # fmt: skip


def _prices(accelerator: Accelerator) -> list[str]:
    """Shows the prices of one TPU slice, and gives their sources; GPUs are sold by the machine."""
    if not accelerator.tpu_type:
        return []
    rental = tpu_rental(accelerator, slices=1, zone="", spot=False)
    found = [row for row in all_rows() if row.product == rental.product]
    rows = [
        [region, _usd(row.usd_per_hour, rental.count), _usd(row.spot_usd_per_hour, rental.count)]
        for row in found
        for region in row.regions
    ]
    if not rows:
        click.echo("  price                  unknown")
        return []
    click.echo("\n" + table(["region", "USD/hour", "on spot"], sorted(rows)) + "\n")
    return list(dict.fromkeys(f"{row.source}: prices, as read on {row.date}" for row in found))


def _usd(each: float | None, count: int) -> str:
    return "unknown" if each is None else f"{each * count:,.2f}"
