"""Makes a hash-locked environment on a host; sent as it is and run by `python3 -c`. Standard library, Python 3.8 on.

Input: a line of JSON (`home`, `key`, `version`, `lock_bytes`, `uv`, `uv_bytes`), the lock file, and our uv if the host
has none. The environment lies in `env/KEY` of our folder, made beside it and renamed, so it is whole or not there.
"""

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys


def main():
    order = json.loads(sys.stdin.buffer.readline().decode())
    lock, uv = sys.stdin.buffer.read(order["lock_bytes"]), sys.stdin.buffer.read(order["uv_bytes"])
    base = os.path.join(order["home"], "env")
    os.makedirs(base, mode=0o700, exist_ok=True)
    target = os.path.join(base, order["key"])
    with open(os.path.join(base, ".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # two clients at once
        if os.path.exists(os.path.join(target, ".ready")):
            return
        command = order["uv"] or place_uv(base, uv)
        shutil.rmtree(target, ignore_errors=True)
        lock_file = os.path.join(base, order["key"] + ".lock")
        with open(lock_file, "wb") as file:
            file.write(lock)
        run(command, "venv", "--quiet", "--python", order["version"], target)
        python = os.path.join(target, "bin", "python")
        run(command, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock_file)
        open(os.path.join(target, ".ready"), "w").close()


def place_uv(base, uv):
    path = os.path.join(base, "uv")
    with open(path + ".new", "wb") as file:
        file.write(uv)
    os.chmod(path + ".new", stat.S_IRWXU)
    os.rename(path + ".new", path)
    return path


def run(*command):
    """With the host's own trust store: behind a proxy, only that knows its certificate. (Older uv: the second name.)"""
    environment = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **os.environ}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} {command[1]} failed:\n{done.stdout.decode(errors='replace')[-3000:]}")


if __name__ == "__main__":
    main()
