#!/bin/bash
# PID 1 of a test host: gives it a root of its own over the machine's, starts what a host starts, and from then on only
# reaps. host.py runs it in fresh namespaces.
#   boot.sh NAME DISK [FOLDER...]    DISK holds upper/, work/ and root/; each FOLDER is shown at its own path, read-only
#                                    unless it is written rw:FOLDER
set -euo pipefail
name=$1 disk=$2
shift 2

mount -t overlay overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work,index=off" "$disk/root"
cd "$disk/root"
find tmp var/tmp -xdev -mindepth 1 -delete  # as Debian does at boot; before anything of the machine is mounted there
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
  touch "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777,size=1g tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
for share in "$@"; do
  folder=${share#rw:}
  mkdir -p ".$folder"
  mount --bind "$folder" ".$folder"
  [ "$share" != "$folder" ] || mount -o remount,bind,ro ".$folder"
done
pivot_root . .  # the old root lies over the new one, and goes
umount -l .
cd /

hostname "$name"
if [ -e /etc/ssh/sshd_config ]; then
  mkdir /run/sshd
  "$(command -v sshd)" -f /etc/ssh/sshd_config
fi
mkfifo /run/init
exec 3<>/run/init
touch /run/ready
while :; do read -r -u 3 || true; done  # nobody writes: bash waits here, and reaps what is handed to PID 1
