# systemd as process 1 of its own namespaces. Its root folder is a copy-on-write copy of the one of this host.
#   $1   a folder whose files are added to the root folder
#   $2   the program `lunar`, or nothing
#   $3   a control group for its processes
#   $4   --net for a network of its own, or nothing
set -e
for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
    [ -e "$tree/cgroup.procs" ] || continue
    mkdir -p "$tree/$3"; echo $$ >"$tree/$3/cgroup.procs"
done
exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc $4 --mount-proc --propagation private \
    /bin/sh -ec '
if [ -e /sys/fs/cgroup/cgroup.procs ]; then only_v2=yes; fi
mount -t tmpfs tmpfs /mnt; mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
cd /mnt/root
mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp; mount -t proc proc proc; mount --rbind /dev dev
mount -t sysfs sysfs sys
if [ -n "$only_v2" ]; then mount -t cgroup2 cgroup2 sys/fs/cgroup; else
    mount -t tmpfs tmpfs sys/fs/cgroup; mkdir sys/fs/cgroup/unified sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd,xattr systemd sys/fs/cgroup/systemd; fi
cp -R "$1"/. .
if [ -n "$2" ]; then touch usr/bin/lunar; mount --bind "$2" usr/bin/lunar; fi
rm -rf etc/systemd/system/network-online.target.wants lib/systemd/system/network-online.target.wants
rm -f usr/sbin/policy-rc.d
ip link set lo up
mkdir -p run/old run/systemd/system; pivot_root . run/old; cd /; umount -l /run/old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=lab /lib/systemd/systemd --unit=test.target \
    --log-target=console --show-status=no' sh "$1" "$2"
