# A node's own view of the machine's files, then its first process.
# Usage: sh node_root.sh FOLDER NAME COMMAND [ARGUMENT ...]
# Everything is mounted in the node's mount namespace and vanishes with it.
set -eu
folder=$1
hostname "$2"
shift 2

# Whatever the node writes there lands in its own folder; the machine's files shine
# through, because programs need them.
overlay() {
    mkdir -p "$folder/layers$1" "$folder/layers$1.work"
    mount -t overlay overlay \
        -o "lowerdir=$1,upperdir=$folder/layers$1,workdir=$folder/layers$1.work" "$1"
}

# A plain folder, because containers' overlays cannot lie on an overlay.
plain() {
    mkdir -p "$folder$1" "$1"
    mount --bind "$folder$1" "$1"
}

overlay /etc
overlay /var/lib
overlay /var/log
plain /var/lib/containerd
plain /var/lib/kubelet
plain /var/lib/etcd
plain /var/log/pods
plain /var/log/containers
# Volumes that the kubelet mounts must show in containers that already run.
mount --make-rshared /var/lib/kubelet
mount -t tmpfs -o mode=755 tmpfs /run

# As docs/operations.md advises: a connection must not have the port of the extender, nor of
# a device plugin or an exporter, which tests run on the node itself. Not every machine lets
# it be written.
{ echo 39990-39999 > /proc/sys/net/ipv4/ip_local_reserved_ports; } 2>/dev/null || :

# An empty one, because each name look-up would otherwise wait for its time-out.
rm -f /etc/resolv.conf
: > /etc/resolv.conf
rm -rf /etc/kubernetes /etc/cni /etc/cdi
mkdir -p /etc/kubernetes/manifests /etc/cni/net.d /etc/cdi

echo "node ready"
exec "$@"
