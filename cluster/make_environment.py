"""Makes a hash-locked environment on a host; sent as it is and run by `python3 -c`. Standard library, Python 3.8 on.

Input: a line of JSON (`home`, `key`, `version`, `lock_bytes`, `uv`, `uv_bytes`), the lock file, and our uv if the host
has none. The environment lies in `env/KEY` of our folder and counts once `.ready` is in it, which is written last.

Of an environment that a job asks for, the line has more: `beneath`, folders whose packages it sees below its own;
`keep`, how many of those that were used last stay; and uv's progress is shown. Who uses one holds a shared lock on its
`.ready`, and so it stays, too.
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
        take(guard)
        if not os.path.exists(os.path.join(target, ".ready")):
            make(order, lock, order["uv"] or place_uv(base, uv), base, guard)
        os.utime(os.path.join(target, ".ready"))
        if "keep" in order:
            prune(base, order["key"], order["keep"])


def take(guard):
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # two clients at once, two jobs, or two emulated hosts
        print("waits until another environment is made on this machine", flush=True)
        fcntl.flock(guard, fcntl.LOCK_EX)


def make(order, lock, command, base, guard):
    target = os.path.join(base, order["key"])
    shutil.rmtree(target, ignore_errors=True)
    with open(target + ".lock", "wb") as file:
        file.write(lock)
    run(guard, command, "venv", "--quiet", "--python", order["version"], target)
    python = os.path.join(target, "bin", "python")
    shown = [] if "keep" in order else ["--quiet"]
    run(guard, command, "pip", "install", *shown, "--python", python, "--require-hashes", "-r", target + ".lock")
    if order.get("beneath"):
        ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = subprocess.run(ask, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
        with open(os.path.join(own, "_spmd_launch_beneath.pth"), "w") as file:
            file.writelines(f"import site; site.addsitedir({folder!r})\n" for folder in order["beneath"])
    open(os.path.join(target, ".ready"), "w").close()


def prune(base, key, keep):
    """Removes what nobody uses, but for those that were used last, and what was left half made."""
    ready = {name: os.path.join(base, name, ".ready") for name in os.listdir(base) if is_environment(base, name)}
    used = {name: os.stat(path).st_mtime for name, path in ready.items() if os.path.exists(path)}
    staying = {key, *sorted(used, key=lambda name: -used[name])[:keep]}
    for name in set(ready) - staying:
        if name in used:
            with open(ready[name]) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue  # a job runs in it
                os.unlink(ready[name])
        shutil.rmtree(os.path.join(base, name), ignore_errors=True)
        if os.path.exists(os.path.join(base, name + ".lock")):
            os.unlink(os.path.join(base, name + ".lock"))


def is_environment(base, name):
    return os.path.isdir(os.path.join(base, name))


def place_uv(base, uv):
    path = os.path.join(base, "uv")
    with open(path + ".new", "wb") as file:
        file.write(uv)
    os.chmod(path + ".new", stat.S_IRWXU)
    os.rename(path + ".new", path)
    return path


def uv_environment(environment):
    """With the host's own trust store: behind a proxy, only that knows its certificate. (Older uv: the second name.)"""
    return {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **environment}


def run(guard, *command):
    """Shows what the command says, unless it is told to be quiet; one that outlives this process keeps the lock."""
    shown = "--quiet" not in command
    done = subprocess.run(
        command, env=uv_environment(os.environ), stdout=None if shown else subprocess.PIPE, stderr=subprocess.STDOUT,
        pass_fds=(guard.fileno(),), check=False,
    )  # fmt: skip
    if done.returncode:
        said = "" if shown else ":\n" + done.stdout.decode(errors="replace")[-3000:]
        sys.exit(f"{command[0]} {command[1]} failed{said}")


if __name__ == "__main__":
    main()
