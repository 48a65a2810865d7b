# Linux's nvme when the emulated controller loses a completion, fails a command, has a fatal
# error and is late: the driver must recover, and no byte may be lost.
device=0000:00:08.0
function=/sys/bus/pci/devices/$device
disk=/dev/nvme0n1

driven() { [ "$(basename "$(readlink $function/driver)")" = nvme ] && [ -b $disk ]; }
is_live() { [ "$(cat $function/nvme/nvme*/state)" = live ]; }
forget() { sync && echo 3 >/proc/sys/vm/drop_caches; }
sum() { sha256sum "$1" | cut -d' ' -f1; }
# Past the cache and in small pieces, so that there are as many commands as the faults need.
written() { dd if=/tmp/whole of=$disk bs=16k oflag=direct 2>/dev/null; }
same() { echo "$1 and $2"; [ "$1" = "$2" ]; }
reads_back() { forget && same "$(sum /tmp/whole)" "$(head -c 16777216 $disk | sha256sum | cut -d' ' -f1)"; }
host_agrees() { same "$(ask sha256 stub.img)" "$(sum $disk)"; }

check "Linux's nvme probes the stub" await 600 driven
dd if=/dev/urandom of=/tmp/whole bs=1M count=16 2>/dev/null
check "16 MiB are written in spite of the faults" written
dmesg | grep -i nvme
check "the controller is live" await 600 is_live
check "they read back the same" reads_back
check "the host's file agrees" host_agrees
check "the driver met a timeout" sh -c 'dmesg | grep -qE "nvme.*(timeout|completion polled)"'
check "the driver met the fatal error" sh -c 'dmesg | grep -qE "nvme.*(controller is down|CSTS=0x3|reset)"'
