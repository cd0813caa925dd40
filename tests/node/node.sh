#!/usr/bin/env bash
# Throw-away Linux nodes for the tests: a real systemd as PID 1 and a real OpenSSH sshd, made of namespaces and an overlay
# over this machine's own root. Needs root, iproute2, util-linux, zstd; no container engine, no image to fetch.
#
#   node.sh build            the layer that makes a node of this machine (2 s; once per machine and its packages)
#   node.sh up NAME          boot a node, wait for its sshd (1-2 s)
#   node.sh down NAME        power off, and SIGKILL after 15 s
#   node.sh ssh NAME [CMD..] log in with the lab's key (NODE_USER, default root)
#   node.sh cut|heal NAME    the network swallows everything, and back
#   node.sh mute|unmute NAME what the node answers on port 22 is lost, and back
#   node.sh refuse|admit NAME port 22 answers with a reset, running sessions too, and back
#   node.sh freeze|thaw NAME every process of the node stops, and goes on
#   node.sh reset NAME       power cycle: SIGKILL everything, boot again from the same disk
#   node.sh list             name, address, host pid of PID 1
#   node.sh clean            no node left, nor bridge, mount, cgroup
#
# Environment:
#   NODE_LAB    state folder of this lab                                        (required)
#   NODE_CACHE  folder of the layer and the login key, shared between labs      ($NODE_LAB)
#   NODE_SLOT   0..15: labs with different slots run side by side               (0)
#   NODE_DISK   size limit of a node's writable layer                           (2g)
#
# Users of a node: root, ops (sudo without a password), pat (sudo with the password "correct horse").
# Nodes have no route out. They see this machine's /usr and /opt, and none of its homes, services, logs or other folders.
set -euo pipefail

LAB=${NODE_LAB:?the state folder of the lab}
CACHE=${NODE_CACHE:-$LAB}
SLOT=${NODE_SLOT:-0}
DISK=${NODE_DISK:-2g}
NET=198.51.100                       # TEST-NET-2; each slot has a /28 of it
LOW=$((SLOT * 16))
BR=rlnb$SLOT
LINK=rln$SLOT-
SELF=$(readlink -f "$0")
KEY=$CACHE/id_ed25519
LAYER=$CACHE/layer.tar.zst
CG=/sys/fs/cgroup
UNIFIED=$CG/unified; [[ -d $UNIFIED ]] || UNIFIED=$CG
SYSTEM='bin|boot|dev|etc|lib|lib32|lib64|libx32|opt|proc|run|sbin|sys|usr|var'   # root folders a node sees

die() { echo "node.sh: $*" >&2; exit 1; }
node_dir() { [[ ${1:-} =~ ^[a-z][a-z0-9]{0,6}$ ]] || die "bad node name '${1:-}'"; echo "$LAB/nodes/$1"; }
need_node() { D=$(node_dir "${1:-}"); [[ -d $D ]] || die "no node '$1'"; }

# A pid file holds "PID STARTTIME", so that a recycled pid is never signalled.
started() { sed 's/^.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
save_pid() { echo "$1 $(started "$1")" >"$2.tmp"; mv "$2.tmp" "$2"; }
live_pid() { local p s; read -r p s 2>/dev/null <"$1" || return 1; [[ $(started "$p") == "$s" ]] || return 1; echo "$p"; }

# --- the layer: what makes a node of this machine, as a small tar file -------------------------------------------------

# It fits as long as the packages, the root folders and this recipe are what they were.
layer_key() { { cat "$SELF" /var/lib/dpkg/status 2>/dev/null; ls /; } | sha256sum | cut -c1-16; }

build() {
    mkdir -p "$LAB/nodes" "$CACHE"
    exec 8>"$CACHE/.lock"; flock 8
    [[ -f $KEY ]] || ssh-keygen -q -t ed25519 -N '' -C relaunch-node-lab -f "$KEY"
    [[ -f $LAYER && $(cat "$CACHE/layer.key" 2>/dev/null) == "$(layer_key)" ]] && return
    unshare --mount --propagation private "$SELF" _build_layer
    layer_key >"$CACHE/layer.key"
}

_build_layer() { # in a private mount namespace on a tmpfs, so that this machine's files and mounts stay as they are
    local w=$CACHE/build.mnt up d h
    mkdir -p "$w"; mount -t tmpfs -o mode=755,size="$DISK" relaunch-lab "$w"
    up=$w/upper; mkdir -p "$up" "$w/work" "$w/root"
    for d in etc/systemd/system var/tmp var/log $(cd / && ls -d */ | tr -d / | grep -vxE "$SYSTEM"); do
        [[ -d /$d && ! -L /$d ]] || continue
        mkdir -p "$up/$d"; chmod --reference="/$d" "$up/$d"
        /usr/bin/python3 -c 'import os,sys; os.setxattr(sys.argv[1],"trusted.overlay.opaque",b"y")' "$up/$d"
    done
    mount -t overlay -o "lowerdir=/,upperdir=$up,workdir=$w/work" overlay "$w/root"
    mount -t proc proc "$w/root/proc"
    mount --rbind /dev "$w/root/dev"
    printf '#!/bin/sh\nexit 101\n' >"$w/root/usr/sbin/policy-rc.d"; chmod 755 "$w/root/usr/sbin/policy-rc.d"
    chroot "$w/root" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -ec '
        wanted="openssh-server sudo systemd-sysv dbus dbus-user-session libpam-systemd"
        if ! dpkg -s $wanted >/dev/null 2>&1; then
            [ -n "$(ls /var/lib/apt/lists/*Packages* 2>/dev/null)" ] || apt-get update -qq
            apt-get install -qq --no-install-recommends --no-upgrade -o Dpkg::Use-Pty=0 \
                -o APT::Keep-Downloaded-Packages=false $wanted >/dev/null
        fi
        rm -f /usr/sbin/policy-rc.d
        useradd -m -s /bin/bash ops
        useradd -m -s /bin/bash pat; echo "pat:correct horse" | chpasswd
        printf "ops ALL=(ALL) NOPASSWD:ALL\npat ALL=(ALL) ALL\n" >/etc/sudoers.d/lab; chmod 440 /etc/sudoers.d/lab
        rm -f /etc/ssh/ssh_host_* /etc/resolv.conf; : >/etc/resolv.conf
        mkdir -p /var/log/journal                       # so that the journal outlives a reboot
        systemctl enable -q ssh.service
        systemctl set-default -q multi-user.target
        systemctl mask -q apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
            fstrim.timer man-db.timer dpkg-db-backup.timer'
    for h in root home/ops home/pat; do
        mkdir -p -m 700 "$w/root/$h/.ssh"; cp "$KEY.pub" "$w/root/$h/.ssh/authorized_keys"
    done
    chroot "$w/root" chown -R ops:ops /home/ops; chroot "$w/root" chown -R pat:pat /home/pat
    umount -l "$w/root/dev" "$w/root/proc"; umount "$w/root"
    tar -C "$up" --xattrs --xattrs-include='*' --numeric-owner -I 'zstd -3 -T0' -cf "$LAYER.tmp" .
    mv "$LAYER.tmp" "$LAYER"
    umount "$w"; rmdir "$w"
}

# --- network: one bridge per lab, one veth per node ----------------------------------------------------------------------

net_up() {
    # Packets to a node whose bridge is gone would follow the default route out of the machine. This guard stays.
    ip route replace unreachable "$NET.0/24" metric 4096
    ip link show "$BR" &>/dev/null && return
    ip link add "$BR" type bridge
    ip addr add "$NET.$((LOW + 1))/28" dev "$BR"
    ip link set "$BR" up
}

# --- up and down ----------------------------------------------------------------------------------------------------------

up() {
    local name=${1:-} D ip n sup
    D=$(node_dir "$name"); [[ -e $D ]] && die "node '$name' exists"
    [[ -f $LAYER ]] || die "no layer: 'node.sh build' comes first"
    exec 9>"$LAB/.lock"; flock 9
    net_up
    for n in $(seq $((LOW + 2)) $((LOW + 14))); do grep -qsx "$NET.$n" "$LAB"/nodes/*/ip || break; done
    ip=$NET.$n
    mkdir -p "$D/mnt" "$D/seed/etc/ssh"; echo "$ip" >"$D/ip"
    flock -u 9
    ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$D/seed/etc/ssh/ssh_host_ed25519_key"
    tr -d - </proc/sys/kernel/random/uuid >"$D/seed/etc/machine-id"
    echo "$name" >"$D/seed/etc/hostname"
    printf '127.0.0.1 localhost\n::1 localhost\n%s %s\n' "$ip" "$name" >"$D/seed/etc/hosts"
    sed "s/^/$ip /" "$D"/seed/etc/ssh/*ed25519_key.pub >"$D/known_hosts"

    # The supervisor owns the node's network and mount namespaces: with it and the node's PID 1 go veth, tmpfs and overlay.
    setsid unshare --net --mount --propagation private "$SELF" _supervise "$name" \
        </dev/null >"$D/console.log" 2>&1 9>&- &
    for _ in $(seq 200); do [[ -s $D/sup.pid ]] && break; sleep 0.02; done
    sup=$(live_pid "$D/sup.pid") || { cat "$D/console.log" >&2; die "the supervisor did not start"; }

    ip link add "$LINK$name" type veth peer name eth0 netns "$sup"
    ip link set "$LINK$name" master "$BR" up
    nsenter -t "$sup" -n sh -ec "ip link set lo up; ip addr add $ip/28 dev eth0; ip link set eth0 up"
    # A fixed neighbour makes 'cut' a silent time-out, as behind a router, and not 'no route to host' after 3 s of ARP.
    ip neigh replace "$ip" dev "$BR" nud permanent \
        lladdr "$(nsenter -t "$sup" -n ip -br link show eth0 | awk '{print $3}')"
    echo go >"$D/go"
    wait_sshd "$name"
    ssh_ "$name" 'systemctl is-system-running --wait' >/dev/null || true
    echo "$name $ip"
}

wait_sshd() {
    local D; need_node "$1"
    for _ in $(seq 400); do
        timeout 1 bash -c "exec 3<>/dev/tcp/$(cat "$D/ip")/22 && head -c4 <&3" 2>/dev/null | grep -q SSH- && return
        live_pid "$D/sup.pid" >/dev/null || { cat "$D/console.log" >&2; die "node '$1' died while booting"; }
        sleep 0.05
    done
    die "node '$1' has no sshd"
}

cgroup_dirs() { # NAME -> this node's cgroup folders on the host, one per hierarchy
    local c path
    while IFS=: read -r _ c path; do
        case $c in
            '') echo "$UNIFIED/relaunch-$SLOT-$1" ;;
            name=systemd) echo "$CG/systemd/relaunch-$SLOT-$1" ;;
            memory) ;;                       # stays in the caller's own, which may be all that is allowed
            *) echo "$CG/$c/relaunch-$SLOT-$1" ;;
        esac
    done </proc/self/cgroup
}

_supervise() { # in the node's own network and mount namespaces, until power-off
    local D rc=129; D=$(node_dir "$1"); cd /
    cgroup_dirs "$1" >"$D/cgroups"
    mount -t tmpfs -o mode=755,size="$DISK" "relaunch-$1" "$D/mnt"
    mkdir "$D/mnt/upper" "$D/mnt/work" "$D/mnt/root"
    tar -C "$D/mnt/upper" --xattrs --xattrs-include='*' --numeric-owner -I zstd -xf "$LAYER"
    cp -a --remove-destination "$D/seed/." "$D/mnt/upper/"
    mount -t overlay -o "lowerdir=/,upperdir=$D/mnt/upper,workdir=$D/mnt/work" overlay "$D/mnt/root"
    save_pid $$ "$D/sup.pid"
    until [[ -e $D/go ]]; do sleep 0.02; done
    # reboot(2) in a pid namespace ends its init with SIGHUP, power-off with SIGINT; unshare passes it on as 128+N.
    while [[ $rc == 129 || -e $D/again ]]; do
        rm -f "$D/again"; rc=0; { "$SELF" _boot "$1" 2>&3 || rc=$?; } 3>&2 2>/dev/null
        echo "--- node '$1' ended: $rc"
        rm -f "$D/init.pid"
        remove_cgroups "$D/cgroups"
    done
}

remove_cgroups() {
    local d
    while read -r d; do
        [[ ! -d $d ]] || find "$d" -depth -type d -exec rmdir {} \; || true
    done <"$1"
}

_boot() { # joins fresh cgroups of its own, then makes the pid namespace
    local D d f; D=$(node_dir "$1")
    while read -r d; do
        mkdir -p "$d"
        case $d in
            */cpuset/*) for f in cpus mems; do cat "$d/../cpuset.$f" >"$d/cpuset.$f"; done ;;
            */devices/*) echo 'b *:* rwm' >"$d/devices.deny" ;;  # root there must not reach this machine's disk
        esac
        echo $$ >"$d/cgroup.procs"
    done <"$D/cgroups"
    exec unshare --mount --uts --ipc --cgroup --pid --fork --kill-child "$SELF" _init "$1"
}

_init() { # PID 1 of the node, until it becomes systemd
    local D R pid x; D=$(node_dir "$1"); R=$D/mnt/root
    read -r pid x </proc/self/stat          # /proc is still the host's, so this is the host's pid
    save_pid "$pid" "$D/init.pid"
    hostname "$1"
    mount -t proc -o nosuid,nodev,noexec proc "$R/proc"
    # Kernel settings outside the network namespace are this machine's: read-only.
    mount --bind "$R/proc/sys" "$R/proc/sys";         mount -o remount,bind,ro "$R/proc/sys"
    mount --bind "$R/proc/sys/net" "$R/proc/sys/net"; mount -o remount,bind,rw "$R/proc/sys/net"
    [[ ! -e $R/proc/sysrq-trigger ]] || mount --bind /dev/null "$R/proc/sysrq-trigger"
    cat /proc/sys/kernel/random/uuid >"$D/mnt/boot_id"   # each boot has its own, as on a real machine
    mount --bind "$D/mnt/boot_id" "$R/proc/sys/kernel/random/boot_id"
    mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$R/sys"
    mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$R/sys/fs/cgroup"
    mount -t tmpfs -o mode=755,nosuid,size=4m dev "$R/dev"
    for x in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$R/dev/${x%:*}" c 1 "${x#*:}"; done
    mknod -m 666 "$R/dev/tty" c 5 0
    mkdir "$R/dev/pts" "$R/dev/shm"
    mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts "$R/dev/pts"
    mount -t tmpfs -o mode=1777,nosuid,nodev shm "$R/dev/shm"
    ln -s pts/ptmx "$R/dev/ptmx"; ln -s /proc/self/fd "$R/dev/fd"
    ln -s fd/0 "$R/dev/stdin"; ln -s fd/1 "$R/dev/stdout"; ln -s fd/2 "$R/dev/stderr"
    cd "$R"; pivot_root . .; umount -l .
    exec env -i container=relaunch-lab PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        setpriv --bounding-set -sys_module,-sys_rawio,-sys_time,-syslog,-mac_admin,-mac_override,-audit_control,-audit_read \
        /lib/systemd/systemd
}

down() {
    local D p sup; need_node "$1"
    thaw "$1" || true
    if p=$(live_pid "$D/init.pid"); then
        kill -s RTMIN+4 "$p" || true                       # systemd: start poweroff.target
        for _ in $(seq 150); do live_pid "$D/init.pid" >/dev/null || break; sleep 0.1; done
        if p=$(live_pid "$D/init.pid"); then kill -KILL "$p" || true; fi
    fi
    for _ in $(seq 50); do live_pid "$D/sup.pid" >/dev/null || break; sleep 0.1; done
    if sup=$(live_pid "$D/sup.pid"); then kill -KILL "$sup" || true; fi
    ip link del "$LINK$1" 2>/dev/null || true
    ip neigh del "$(cat "$D/ip")" dev "$BR" 2>/dev/null || true
    [[ ! -f $D/cgroups ]] || remove_cgroups "$D/cgroups"
    rm -rf --one-file-system "$D"
}

# --- use and faults -------------------------------------------------------------------------------------------------------

ssh_() {
    local D; need_node "$1"; shift
    ssh -F none -i "$KEY" -o IdentitiesOnly=yes -o BatchMode=yes -o ConnectTimeout=5 -o LogLevel=ERROR \
        -o UserKnownHostsFile="$D/known_hosts" -o GlobalKnownHostsFile=/dev/null \
        -o StrictHostKeyChecking=yes "${NODE_USER:-root}@$(cat "$D/ip")" "$@"
}
# A disabled bridge port drops every frame both ways and leaves the link up.
cut_()   { need_node "$1"; bridge link set dev "$LINK$1" state 0; }
heal()   { need_node "$1"; bridge link set dev "$LINK$1" state 3; }
freeze() { need_node "$1"; echo 1 >"$UNIFIED/relaunch-$SLOT-$1/cgroup.freeze"; }
thaw()   { need_node "$1"; [[ ! -d $UNIFIED/relaunch-$SLOT-$1 ]] || echo 0 >"$UNIFIED/relaunch-$SLOT-$1/cgroup.freeze"; }
reset()  { need_node "$1"; local p; p=$(live_pid "$D/init.pid") || die "'$1' is not running"; touch "$D/again"; kill -KILL "$p"; }
in_net() { local p; p=$(live_pid "$D/sup.pid") || die "'$1' is not running"; shift; nsenter -t "$p" -n "$@"; }
fault()  { need_node "$1"; in_net "$1" nft "add table inet fault; add chain inet fault c { type filter hook $2 priority 0; }; add rule inet fault c $3"; }
unfault() { need_node "$1"; in_net "$1" nft delete table inet fault; }
mute()   { fault "$1" output 'tcp sport 22 drop'; }
unmute() { unfault "$1"; }
refuse() { fault "$1" input 'tcp dport 22 reject with tcp reset'; }
admit()  { unfault "$1"; }
list() {
    local D
    for D in "$LAB"/nodes/*/; do
        [[ -f $D/ip ]] || continue
        echo "$(basename "$D") $(cat "$D/ip") $(live_pid "$D/init.pid" || echo -)"
    done
}
clean() {
    local D
    for D in "$LAB"/nodes/*/; do [[ -d $D ]] && down "$(basename "$D")"; done
    ip link del "$BR" 2>/dev/null || true
}

cmd=${1:-help}; shift || true
case $cmd in
    build | up | down | list | clean | heal | freeze | thaw | reset | mute | unmute | refuse | admit | wait_sshd | \
        _build_layer | _supervise | _boot | _init) "$cmd" "$@" ;;
    ssh | cut) "${cmd}_" "$@" ;;
    *) sed -n '2,/^set /{/^#/p}' "$SELF"; exit 2 ;;
esac
