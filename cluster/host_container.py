"""Runs our commands on a host in a container; sent as it is and run there by `python3 -c`. Standard library, 3.8 on.

There is one container a cluster and host, and it has the host's pids, network and shared memory, our folder, /tmp and
the storage at their own paths, and its user: what names or watches processes, ports and files need not know of it. Its
first process only waits until nothing else runs in it and nobody is about to begin anything; then it ends, and the
engine removes the container. So nobody can die at a moment that leaves one.

Who is there is said by locks, which the kernel takes back from the dead. Of each container there are three files:
`.alive` is held by its first process as long as it lives; `.use` is shared by those who bring a command, and held alone
by a first process that is ending; `.start` is held by who makes the container.
"""

import fcntl
import json
import os
import pwd
import subprocess
import sys
import time

START_TIMEOUT_S = 30.0
PERIOD_S = 1.0
BOOT = "import sys; exec(sys.argv[1])"  # so that this file, given as the first argument, can hand itself on


def run_argv(order, uid, gid, groups, user, folders):
    """The command that makes the container, up to the image's name.

    Args:
        order: `engine`, its path; `name`; `image`; `gpu`, whether the host's GPUs are passed on; and others.
        uid, gid, groups, user: who has asked, and whose processes these will be.
        folders: that it shares with the host.
    """
    argv = [order["engine"], "run", "--rm", "--detach", "--name", order["name"], "--entrypoint", "python3"]
    argv += ["--network", "host", "--pid", "host", "--ipc", "host", "--user", f"{uid}:{gid}"]
    argv += ["--pids-limit", "-1", "--security-opt", "label=disable"]  # Podman allows 2048 threads; SELinux no folders
    if is_podman(order["engine"]):
        argv += ["--ulimit", "host"] + (["--userns", "keep-id", "--group-add", "keep-groups"] if uid else [])
    else:
        argv += [word for group in groups for word in ("--group-add", str(group))]
    if order["gpu"]:
        argv += ["--device", "nvidia.com/gpu=all"] if is_podman(order["engine"]) else ["--gpus", "all"]
    for folder in folders:
        argv += ["--mount", f"type=bind,source={folder},target={folder}"]
    home = os.path.expanduser("~")
    for name, value in (("HOME", home), ("USER", user), ("LOGNAME", user)):  # the image may not know this user
        argv += ["--env", f"{name}={value}"]
    return [*argv, order["image"]]


def is_podman(engine):
    return os.path.basename(engine) == "podman"


def lock_paths(order):
    base = os.path.join(order["home"], "containers")
    for folder in (order["home"], base):  # each by itself: parents that it makes are open to all
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return {kind: os.path.join(base, f"{order['name']}.{kind}") for kind in ("use", "alive", "start")}


def enter(order, source, argv):
    """Becomes `python3 ARGV` in the container, which is made if it is not there."""
    paths = lock_paths(order)
    use = open(paths["use"], "a")  # noqa: SIM115  held until the command has ended
    fcntl.flock(use, fcntl.LOCK_SH)
    with open(paths["start"], "a") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        if not is_held(paths["alive"]):
            make(order, source, paths)
    os.set_inheritable(use.fileno(), True)
    os.execv(order["engine"], [order["engine"], "exec", "--interactive", order["name"], "python3", *argv])


def make(order, source, paths):
    end(order)  # a power cut leaves one that does not run
    folders = [order["home"], "/tmp"]
    if order["storage"]:
        storage = os.path.expanduser(order["storage"])
        os.makedirs(storage, exist_ok=True)
        folders.append(storage)
    user = pwd.getpwuid(os.getuid()).pw_name
    command = run_argv(order, os.getuid(), os.getgid(), os.getgroups(), user, folders)
    command += ["-c", BOOT, source, "live", paths["use"], paths["alive"]]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"no container of {order['image']}: {done.stderr.decode(errors='replace').strip()}")
    if not wait_until(lambda: is_held(paths["alive"])):
        sys.exit(f"the container {order['name']} of {order['image']} was not there after {START_TIMEOUT_S:g} s")


def live(use_path, alive_path):
    """What the container's first process does."""
    with open(use_path, "a") as use, open(alive_path, "a") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        while True:
            time.sleep(PERIOD_S)
            if not others_here():
                try:
                    fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # somebody brings a command
                if not others_here():
                    os._exit(0)  # the kernel lets go of both locks at once
                fcntl.flock(use, fcntl.LOCK_UN)


def others_here():
    """Whether another process runs in this container: they have one mount namespace, and nobody else has it."""
    here = os.readlink("/proc/self/ns/mnt")
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and int(entry) != os.getpid() and os.readlink(f"/proc/{entry}/ns/mnt") == here:
                return True
        except OSError:
            pass  # it has ended, or is another user's
    return False


def remove(order):
    """Ends the container with all that is in it; there may be none."""
    done = end(order)
    if not wait_until(lambda: not is_held(lock_paths(order)["alive"])):
        sys.exit(f"the container {order['name']} does not end: {done.stderr.decode(errors='replace').strip()}")


def end(order):
    return subprocess.run([order["engine"], "rm", "--force", order["name"]], capture_output=True, check=False)


def is_held(path):
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def wait_until(what):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main(source, verb, *arguments):
    if verb == "live":
        live(*arguments)
    elif verb == "remove":
        remove(json.loads(arguments[0]))
    else:
        enter(json.loads(arguments[0]), source, arguments[1:])


if __name__ == "__main__":
    main(*sys.argv[1:])
