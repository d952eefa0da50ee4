#!/bin/bash
# boot.sh FOLDER LAYER [SOURCE TARGET]...   run as the first process of new mount, pid, uts, ipc and net namespaces, in a cgroup of its own
#
# Becomes the systemd of a host that is this one's root file system with what LAYER has and all changes thrown away, and
# none of this host's own services; LAYER may be empty. FOLDER is empty and private; SOURCE is seen at TARGET,
# read-only. systemd's log is FOLDER/log.
set -euo pipefail
folder=$1
layer=$2
shift 2
root=$folder/disk/root

mount -t tmpfs -o mode=755 disk "$folder"
mkdir -p "$folder/disk"/{changes,work,root}
[ -z "$layer" ] || cp -a "$layer/." "$folder/disk/changes"
mount -t overlay host -o "lowerdir=/,upperdir=$folder/disk/changes,workdir=$folder/disk/work" "$root"

# An installation of this host's own is not there.
rm -rf "$root"/{etc,opt,var/lib}/mooncake "$root"/etc/credstore "$root"/usr/local/lib/{systemd,sysusers.d,tmpfiles.d}

# What this host's packages have enabled is of no use here: only the journal and dbus remain.
mask() { ln -sf /dev/null "$root/etc/systemd/system/$1"; }
rm -rf "$root"/etc/systemd/system/* "$root"/usr/lib/systemd/system-generators/*
find "$root"/usr/lib/systemd/system/*.target.wants -type l ! -name 'systemd-journald*' ! -name dbus.socket -delete
for unit in systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service systemd-tmpfiles-clean.timer; do
    mask "$unit" # they would empty /tmp, and make devices
done
cat >"$root/etc/systemd/system/test.target" <<'UNIT'
[Unit]
Requires=basic.target
After=basic.target
UNIT

for device in null zero full random urandom tty; do devices+=("/dev/$device"); done
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sys "$root/sys"
mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
mkdir "$root"/dev/{pts,shm,mqueue}
cp -a "${devices[@]}" "$root/dev"
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t devpts -o newinstance,ptmxmode=666 pts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
# What is one kernel's for all namespaces stays as it is.
for path in sys sysrq-trigger; do
    [ -e "$root/proc/$path" ] || continue
    mount --bind "$root/proc/$path" "$root/proc/$path"
    mount -o remount,bind,ro "$root/proc/$path"
done

ip link set lo up
cd "$root"
mkdir -p host
pivot_root . host
umount --lazy /host
mount --make-rshared /
exec setpriv --bounding-set -sys_time,-sys_module,-sys_rawio,-syslog \
    env --ignore-environment container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/lib/systemd/systemd --unit=test.target --show-status=no --log-target=journal
