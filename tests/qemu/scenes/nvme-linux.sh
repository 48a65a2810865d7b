# What vdk writes, Linux's own nvme driver reads, and the other way round; the file on the
# host agrees. The whole device each time, and so sizes that do not divide it.
device=0000:00:06.0
disk=/dev/nvme0n1

sum() { sha256sum "$1" | cut -d' ' -f1; }
noise() { # file; of the size of the device
    head -c $((4 << 20)) /dev/urandom >/tmp/noise
    # One 4 MiB piece of noise, in each copy with another beginning, so that no two are alike.
    rm -f "$1"
    for piece in 0 1 2 3 4 5 6 7; do
        echo "piece $piece of $1 $(cat /proc/uptime)" >>"$1"
        cat /tmp/noise >>"$1"
    done
    truncate -s $((32 << 20)) "$1"
}
settled() { [ -b $disk ]; }
reads_as() { # file that the whole device must equal, read by the kernel past its cache
    local got
    got=$(dd if=$disk bs=1M iflag=direct 2>/dev/null | sha256sum | cut -d' ' -f1)
    [ "$got" = "$(sum "$1")" ] || { echo "the kernel reads $got"; false; }
}
vdk_reads_as() { # file options...
    local file=$1
    shift
    vdk nvme read $device -o /tmp/read "$@" && cmp "$file" /tmp/read
}
host_agrees() { # file
    local there
    there=$(ask sha256 nvme.img)
    [ "$there" = "$(sum "$1")" ] || { echo "the host's file has $there"; false; }
}

noise /tmp/ours
noise /tmp/theirs
await 600 settled || failed "Linux's nvme driver finds the disk"
for interface in type1 iommufd; do
    check "vdk takes the controller from Linux by $interface" give $device vfio-pci
    check "vdk writes the whole device by $interface" \
        vdk nvme write $device -i /tmp/ours --flush --verify --yes --interface $interface
    check "the file on the host has what vdk wrote by $interface" host_agrees /tmp/ours
    check "Linux takes the controller back after $interface" give $device nvme
    check "the disk is there again after $interface" await 600 settled
    check "Linux reads what vdk wrote by $interface" reads_as /tmp/ours
    check "Linux writes the whole device" dd if=/tmp/theirs of=$disk bs=1M oflag=direct conv=fsync
    check "vdk takes the controller again by $interface" give $device vfio-pci
    check "vdk reads what Linux wrote by $interface" vdk_reads_as /tmp/theirs --interface $interface
    check "the file on the host has what Linux wrote" host_agrees /tmp/theirs
    give $device nvme
    await 600 settled
    noise /tmp/ours
done
