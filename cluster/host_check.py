"""Looks at a machine before anything of ours is on it; sent as it is and run by `python3 -`, so it needs no package.

Standard library only, Python 3.8 and later. Prints one JSON object; see `cluster.host_facts` for what is made of it.
"""

import json
import os
import platform
import pwd
import shutil
import socket
import subprocess
import sys
import time

HOLDER = "-m cluster.holder"
IMAGE = "image:"  # of `cluster.python_setting`
ACTOR = "ray::"  # how Ray renames what runs an agent of ours; in a Ray that is not ours there is no holder


def main(name, host, python, marker):
    home = os.path.join(os.path.expanduser("~"), ".spmd-launch", "hosts", host)
    image = python[len(IMAGE) :] if python.startswith(IMAGE) else ""
    container = look_for_engine(image) if image else None
    print(
        json.dumps(
            {
                "home": home,
                "address": (os.environ.get("SSH_CONNECTION") or "").split(" ")[2:3],
                "hostname": socket.gethostname(),
                "resolves_to": resolve(socket.gethostname()),
                "clock": time.time(),
                "free_bytes": free_bytes(home),
                "writable": writable(home),
                "free_shm_bytes": free_bytes("/dev/shm"),
                "machine": platform.machine(),
                "system": platform.system(),
                "python": look_at_python(python_command(python, container, image)),
                "container": container,
                "uv": shutil.which("uv") or "",
                "environments": environments(home),
                "cluster": left_of(home, name),
                "others": others_up(home, name),
                "processes": our_processes(marker),
            }
        )
    )


def resolve(hostname):
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(hostname, None, socket.AF_INET)})
    except OSError:
        return []


def free_bytes(path):
    while not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return -1


def writable(path):
    """Why the folder cannot be made and written, or ''; afterwards there is no more than before."""
    made = []  # type: list[str]
    try:
        make_folders(path, made)
        probe = os.path.join(path, ".probe")
        made.append(probe)
        with open(probe, "w") as file:
            file.write("x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return str(error)
    finally:
        for entry in reversed(made):
            remove_own(entry)
    return ""


def make_folders(path, made):
    if not os.path.isdir(path):
        make_folders(os.path.dirname(path), made)
        os.mkdir(path, 0o700)
        made.append(path)


def remove_own(path):
    try:
        if os.path.isdir(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        pass  # never written, or somebody uses the folder by now


def look_for_engine(image):
    """What runs containers here: path, why none does or '', what to know of it or '', and whether it has the image."""
    why = []
    for name, ask in (("podman", "{{.Host.Security.Rootless}}"), ("docker", "{{.SecurityOptions}}")):
        engine = shutil.which(name)
        if engine is None:
            continue
        code, output = answer_of([engine, "info", "--format", ask])
        if code:
            why.append(f"{name}: {output}")
        elif name == "docker" and "rootless" in output:
            why.append("docker: it is rootless and gives processes to another user; podman does not")
        else:
            has_image = answer_of([engine, "image", "inspect", "--format", "{{.Id}}", image])[0] == 0
            ends = name == "podman" and output == "true" and ends_at_logout()
            return {"engine": engine, "error": "", "ends_at_logout": ends, "has_image": has_image}
    return {"engine": "", "error": "; ".join(why) or "neither podman nor docker is installed",
            "ends_at_logout": False, "has_image": False}  # fmt: skip


def ends_at_logout():
    """Whether systemd ends this user's containers with his last session."""
    linger = os.path.join("/var/lib/systemd/linger", pwd.getpwuid(os.getuid()).pw_name)
    return os.path.isdir("/run/systemd/system") and not os.path.exists(linger)


def answer_of(command):
    """Exit code and output of a command; of one that fails the last line of its errors."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    if done.returncode:
        return done.returncode, (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    return 0, done.stdout.decode(errors="replace").strip()


def python_command(python, container, image):
    """How an interpreter that is there is started: one given by its path, or an image's; [] where there is none."""
    if container is None:
        return [python] if python.startswith("/") else []
    if not container["has_image"]:
        return []
    limits = ["--ulimit", "host"] if os.path.basename(container["engine"]) == "podman" else []
    return [container["engine"], "run", "--rm", "--network", "none", *limits, "--entrypoint", "python3", image]


def look_at_python(command):
    """Version and the packages that matter, of an interpreter given by the command that starts it."""
    if not command:
        return {}
    code = (
        "import sys, json; from importlib import metadata as m\n"
        "found = {}\n"
        "for p in ('ray', 'jax', 'jaxlib', 'numpy', 'psutil'):\n"
        "    try: found[p] = m.version(p)\n"
        "    except m.PackageNotFoundError: found[p] = ''\n"
        "print(json.dumps({'version': '%d.%d.%d' % sys.version_info[:3], 'packages': found}))"
    )
    try:
        done = subprocess.run([*command, "-c", code], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if done.returncode:
        return {"error": (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.decode())


def environments(home):
    """Those that were made whole here: `{key: interpreter}`."""
    base = os.path.join(home, "env")
    keys = os.listdir(base) if os.path.isdir(base) else []
    return {k: os.path.join(base, k, "bin/python") for k in keys if os.path.exists(os.path.join(base, k, ".ready"))}


def left_of(home, name):
    """What a cluster of this name has here: its record, where there is one, and whether its holder lives."""
    folder = os.path.join(home, "clusters", name)
    if not os.path.isdir(folder):
        return None
    holder = read_json(os.path.join(folder, "holder.json")) or {}
    return {
        "record": read_json(os.path.join(folder, "cluster.json")),
        "cluster_id": (read_json(os.path.join(folder, "request.json")) or {}).get("cluster_id"),
        "holder_lives": start_time(holder.get("pid", -1)) == holder.get("started"),
    }


def others_up(home, name):
    """Other clusters that use our folder; one that has no holder yet is being brought up."""
    base = os.path.join(home, "clusters")
    names = os.listdir(base) if os.path.isdir(base) else []
    found = {other: left_of(home, other) for other in names if other != name}
    return sorted(other for other, left in found.items() if left is not None and left["holder_lives"])


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def our_processes(marker):
    """Processes of clusters of ours that nobody holds: pid, seconds since it started, cluster id, command."""
    found = []
    held = set()
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            command = command_of(entry)
            parent = parent_command(entry)
        except OSError:
            continue  # ended meanwhile, or another user's
        ids = [v.split(b"=", 1)[1].decode(errors="replace") for v in variables if v.startswith(marker.encode() + b"=")]
        if ids and ids[0]:
            found.append({"pid": int(entry), "age_s": age(int(entry)), "cluster_id": ids[0], "command": command[:80]})
            if HOLDER in command or parent.startswith(ACTOR):
                held.add(ids[0])
    return [process for process in found if process["cluster_id"] not in held]


def command_of(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()


def parent_command(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return command_of(file.read().rpartition(b")")[2].split()[1].decode())
    except OSError:
        return ""  # it has none that is seen here, or not any more


def start_time(pid):
    """In clock ticks since boot, as `cluster.processes` names a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else float(fields[19])
    except OSError:
        return None


def age(pid):
    started = start_time(pid)
    with open("/proc/uptime") as file:
        uptime = float(file.read().split()[0])
    return 0.0 if started is None else round(uptime - started / os.sysconf("SC_CLK_TCK"), 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
