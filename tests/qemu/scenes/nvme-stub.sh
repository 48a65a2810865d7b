# Linux's own driver, nvme, judges the emulated controller at 0000:00:08.0. Its blocks are in
# the host's file stub.img.
device=0000:00:08.0
function=/sys/bus/pci/devices/$device
disk=/dev/nvme0n1
whole=33554432

driven() { [ "$(basename "$(readlink $function/driver)")" = nvme ] && [ -b $disk ]; }
uncomplaining() { ! dmesg | grep -iE 'nvme.*(fail|timeout|error|abort|invalid|missing|disabl|not ready|down)'; }
is_live() { [ "$(cat $function/nvme/nvme*/state)" = live ]; }
forget() { sync && echo 3 >/proc/sys/vm/drop_caches; }
sum() { sha256sum "$1" | cut -d' ' -f1; }
same() { echo "$1 and $2"; [ "$1" = "$2" ]; }
interrupted() { awk '/nvme0q/ { for (i = 2; i <= 3; i++) sum += $i } END { exit sum < 100 }' /proc/interrupts; }

fill() { # a file that does not compress to nothing
    dd if=/dev/urandom of=/tmp/block bs=1M count=1 2>/dev/null
    for round in $(seq 32); do
        cat /tmp/block
        echo "$round" >>/tmp/block
        tail -c 1048576 /tmp/block >/tmp/next && mv /tmp/next /tmp/block
    done >/tmp/whole
}
written() { dd if=/tmp/whole of=$disk bs=1M 2>/dev/null && forget; }
reads_back() { forget && same "$(sum $disk)" "$right"; }
host_agrees() { same "$(ask sha256 stub.img)" "$right"; }
single_blocks() {
    local place
    for place in 0 1 7 8 65535; do
        dd if=/tmp/whole of=$disk bs=512 count=1 skip=$((place % 1000)) seek=$place oflag=direct conv=notrunc 2>/dev/null || return 1
        dd if=$disk of=/tmp/one bs=512 count=1 skip=$place iflag=direct 2>/dev/null || return 1
        dd if=/tmp/whole of=/tmp/right bs=512 count=1 skip=$((place % 1000)) 2>/dev/null
        cmp /tmp/one /tmp/right || return 1
    done
}
discarded() {
    forget
    blkdiscard -o 1048576 -l 2097152 $disk || return 1
    dd if=$disk of=/tmp/part bs=1M skip=1 count=2 2>/dev/null
    dd if=/dev/zero of=/tmp/zeros bs=1M count=2 2>/dev/null
    cmp /tmp/part /tmp/zeros
}
reset_controller() { echo 1 >/sys/class/nvme/nvme0/reset_controller && await 600 is_live && reads_back; }
reset_function() { echo 1 >$function/reset && await 600 is_live && reads_back; }
remove() { echo $device >/sys/bus/pci/drivers/nvme/unbind && [ ! -e $disk ]; }
probe() { echo $device >/sys/bus/pci/drivers/nvme/bind && await 600 driven && await 600 is_live; }
ten_times() {
    local round=0
    while [ $round -lt 10 ]; do
        remove && probe || return 1
        round=$((round + 1))
    done
}
unplugged() { echo 1 >$function/remove && [ ! -e $disk ] && echo 1 >/sys/bus/pci/rescan && await 600 driven; }
run_fio() { # name arguments...
    local name=$1
    shift
    fio --name="$name" --filename=$disk --direct=1 --output-format=terse --terse-version=3 --group_reporting "$@" >/tmp/fio || { cat /tmp/fio; return 1; }
    # Fields 8 and 49 are the operations of a second that were read and written, 5 the errors.
    say "figure: $name: $(cut -d';' -f8 /tmp/fio) reads and $(cut -d';' -f49 /tmp/fio) writes a second"
    [ "$(cut -d';' -f5 /tmp/fio)" = 0 ]
}

check "Linux's nvme probes the stub" await 600 driven
check "it complains of nothing" uncomplaining
dmesg | grep -i nvme
cat $function/nvme/nvme0/model $function/nvme/nvme0/subsysnqn
check "the disk has its size" same "$(cat /sys/block/nvme0n1/size)" $((whole / 512))
fill
# A checksum takes seconds here.
right=$(sum /tmp/whole)
check "the whole disk is written" written
check "it reads back the same" reads_back
check "the host's file agrees" host_agrees
check "completions are told by interrupts" interrupted
check "a controller reset loses nothing" reset_controller
check "a function-level reset under the driver loses nothing" reset_function
check "it is removed and probed ten times" ten_times
check "it is unplugged and found again" unplugged
check "it reads the same afterwards" reads_back
check "single blocks are written and read past the cache" single_blocks
check "what is discarded reads as zeros" discarded
check "fio writes at random and verifies" run_fio verify --rw=randwrite --bs=512-64k --size=16M --iodepth=32 --ioengine=io_uring --verify=crc32c --do_verify=1
check "fio reads at random on two processors" run_fio read --rw=randread --bs=4k --size=32M --iodepth=32 --numjobs=2 --ioengine=io_uring --time_based --runtime=3
check "fio reads one at a time" run_fio depth1 --rw=randread --bs=4k --size=32M --iodepth=1 --ioengine=psync --time_based --runtime=3
grep nvme0q /proc/interrupts
check "it complained of nothing to the end" uncomplaining
remove
check "it goes to vfio-pci and comes back" sh -c "echo vfio-pci >$function/driver_override; echo $device >/sys/bus/pci/drivers_probe; echo $device >/sys/bus/pci/drivers/vfio-pci/unbind; echo nvme >$function/driver_override; echo $device >/sys/bus/pci/drivers_probe"
check "Linux drives it again" await 600 driven
