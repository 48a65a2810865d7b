# The kernel's driver with fio beside vdk's, in one guest and one run.
device=0000:00:06.0
disk=/dev/nvme0n1

figure() { echo "figure: $*" >&3; echo "$*"; }
settled() { [ -b $disk ]; }

# Prints operations a second and processor nanoseconds an operation.
linux() { # pattern block depth [--hipri]
    # Fields 8 and 7 of the terse line are read operations and KiB a second, 88 and 89 the
    # shares of a processor in user and system mode, of the run time in field 9, in ms.
    fio --name=bench --filename=$disk --direct=1 --ioengine=io_uring --rw="$1" --bs="$2" \
        ${4:+"$4"} --iodepth="$3" --runtime="$seconds" --time_based --output-format=terse --terse-version=3 |
        awk -F';' '{ sub("%", "", $88); sub("%", "", $89); iops = $8
            printf "%d %d\n", iops, (iops ? ($88 + $89) / 100 * 1e9 / iops : 0) }'
}
ours() { # pattern block depth wait
    vdk nvme bench $device --interface "$interface" --pattern "$1" --block-size "$2" --depth "$3" --wait "$4" \
        --seconds "$seconds" --json >/tmp/json || { cat /tmp/json >&2; return 1; }
    number() { sed -n "s/^ *\"$1\": *\([0-9]*\).*/\1/p" /tmp/json | head -n 1; }
    echo "$(number iops) $(number cpu_ns_per_operation)"
}
row() { # label iops ns reference
    figure "$(awk -v l="$1" -v i="$2" -v n="$3" -v r="$4" 'BEGIN { printf "%-46s %9d %11d %7.2f", l, i, n, r ? i / r : 0 }')"
}

await 600 settled || failed "Linux's nvme driver finds the disk"
figure "$(printf '%-46s %9s %11s %7s' 'reads, one queue' IOPS 'CPU ns/op' ratio)"
for round in $(seq 1 "${rounds:-1}"); do
    for work in "randread random 4KiB 4k 1" "randread random 4KiB 4k 32" "read sequential 128KiB 128k 8"; do
        set -- $work
        echo $work >/tmp/work
        read -r rw pattern size bs depth </tmp/work
        give $device nvme
        await 600 settled
        read -r reference ns <<EOF
$(linux "$rw" "$bs" "$depth")
EOF
        row "$size $pattern, depth $depth: Linux, io_uring" "$reference" "$ns" "$reference"
        read -r iops ns <<EOF
$(linux "$rw" "$bs" "$depth" --hipri)
EOF
        row "$size $pattern, depth $depth: Linux, io_uring polled" "$iops" "$ns" "$reference"
        give $device vfio-pci
        for wait in poll interrupt; do
            read -r iops ns <<EOF
$(ours "$pattern" "$size" "$depth" $wait)
EOF
            row "$size $pattern, depth $depth: vdk, $interface, $wait" "$iops" "$ns" "$reference"
        done
    done
done
