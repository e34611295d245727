"""Test hosts by hand: `python -m tests.hosts up` leaves a set up and writes lab.yaml into the current folder."""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.hosts.machines import CLAIMED, NAMES, TestHosts, missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__)
    parser.add_argument("--set", type=int, default=0, choices=range(CLAIMED[0]), metavar="N", help="0 to 199")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="three hosts and a laptop, reachable from this machine; writes lab.yaml")
    commands.add_parser("down", help="removes all of it")
    for name, words in {
        "cut": "takes a host off the network",
        "heal": "puts it back",
        "kill": "a power cut",
        "boot": "switches it on again",
    }.items():
        commands.add_parser(name, help=words).add_argument("host")
    run = commands.add_parser("run", help="runs a command in a host, past its sshd; `laptop` is the operator's machine")
    run.add_argument("host")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    return carry_out(arguments)


def carry_out(arguments: argparse.Namespace) -> int:
    if arguments.command == "up":
        hosts = TestHosts(NAMES, arguments.set, from_machine=True)
        if any(host.is_on() for host in hosts.machines()):
            print(f"set {arguments.set} is up: take it down first, or name another", file=sys.stderr)
            return 2
        hosts.up()
        hosts.write_lab(Path("lab.yaml"))
        for host in hosts.hosts.values():
            print(f"{host.name}  {host.address}  ssh -F {hosts.ssh_config} {host.name}")
        print(f"lab.yaml is written; `make test-hosts-down SET={arguments.set}` removes the hosts")
        return 0
    if arguments.command == "down":
        TestHosts((), arguments.set).down()
        return 0
    try:
        hosts = TestHosts.existing(arguments.set)
        host = {machine.name: machine for machine in hosts.machines()}[arguments.host]
    except (FileNotFoundError, KeyError):
        print(f"set {arguments.set} has no host {arguments.host}; is it up?", file=sys.stderr)
        return 2
    if arguments.command == "run":
        return subprocess.run(host.enter(arguments.argv), check=False).returncode
    getattr(host, arguments.command)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
