"""What plain JAX does when two hosts run different programs: a wrong number, and exit code 0.

Two processes, as two hosts would be; the second has 3 where the first has 2, as after an edit that reached one host
only. Both sum 1, 2, 3, 4 over their devices, times their factor: 20, had both the same program. Run it with
`python examples/different_programs.py`.
"""

import socket
import subprocess
import sys

PROGRAM = """
import sys
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

rank, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
values = np.arange(1, 5, dtype=np.float32)
x = jax.make_array_from_callback((4,), NamedSharding(mesh, P("data")), lambda index: values[index])
factor = 2.0 if rank == 0 else 3.0  # the edit that reached one host only
total = jax.jit(lambda x: (factor * x).sum(), out_shardings=NamedSharding(mesh, P()))(x)
print(f"process {rank}: {float(total):g}", flush=True)
"""


def main() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reservation:
        port = str(reservation.getsockname()[1])
    ranks = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), port]) for rank in range(2)]
    codes = [rank.wait(120) for rank in ranks]
    print(f"exit codes: {codes}; with one program on both the sum would be 20")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
