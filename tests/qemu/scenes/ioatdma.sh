# Linux's own driver, ioatdma, judges the emulated I/OAT engine at 0000:00:07.0.
device=0000:00:07.0
function=/sys/bus/pci/devices/$device
dmatest=/sys/module/dmatest/parameters

driven() { [ "$(basename "$(readlink $function/driver)")" = ioatdma ] && [ -e /sys/class/dma/dma0chan0 ]; }
idle() { [ -z "$(ls /sys/class/dma)" ]; }
channels() { for channel in /sys/class/dma/*; do basename "$channel"; done; }
uncomplaining() { ! dmesg | grep -E 'ioatdma.*(failed|timed out|error|disabling|Err)' ; }
probe() { echo $device >/sys/bus/pci/drivers/ioatdma/bind && driven; }
remove() { echo $device >/sys/bus/pci/drivers/ioatdma/unbind && idle; }

# Copies of random lengths on every channel at once, each compared by the kernel.
copies() { # iterations
    local lines
    dmesg -c >/tmp/earlier
    cat /tmp/earlier >>/tmp/log
    echo "$1" >$dmatest/iterations
    echo 20000 >$dmatest/timeout
    for channel in $(channels); do echo "$channel" >$dmatest/channel; done
    echo 1 >$dmatest/run
    cat $dmatest/wait >/dev/null
    dmesg | grep dmatest
    lines=$(dmesg | grep -c "summary $1 tests, 0 failures")
    [ "$lines" = "$(channels | wc -l)" ] && uncomplaining
}
interrupts() { # kind
    awk -v kind="ioat-$1" '$NF == kind { for (i = 2; i < NF; i++) if ($i ~ /^[0-9]+$/) sum += $i } END { print sum + 0 }' /proc/interrupts
}
interrupted() { [ "$(interrupts "$1")" -gt 0 ] || { cat /proc/interrupts; false; }; }
twenty_times() {
    local round=0
    while [ $round -lt 20 ]; do
        remove && probe || return 1
        round=$((round + 1))
    done
    uncomplaining
}

check "Linux's ioatdma probes the stub" driven
check "its self-test passes, and it complains of nothing" uncomplaining
dmesg | grep -i ioat
check "dmatest makes 1000 copies without a failure" copies 1000
check "they are reported by MSI-X" interrupted msix
echo 1 >$dmatest/polled
check "dmatest polls 200 copies without a failure" copies 200
echo 0 >$dmatest/polled
check "it is removed and probed twenty times, each with a self-test" twenty_times
for style in msi intx; do
    remove
    printf $style >/sys/module/ioatdma/parameters/ioat_interrupt_style
    check "ioatdma probes with $style" probe
    check "dmatest makes 200 copies without a failure by $style" copies 200
    check "they are reported by $style" interrupted $style
done
remove
printf msix >/sys/module/ioatdma/parameters/ioat_interrupt_style
probe
# Linux's driver does not set its channels up again after a reset: it must be probed anew.
reset() { echo 1 >$function/reset; }
check "a function-level reset under the driver ends well" reset
check "ioatdma is removed after the reset" remove
check "ioatdma probes after the reset" probe
check "dmatest makes 200 copies without a failure after the reset" copies 200

# From the kernel's driver to vdk's and back.
check "vdk's driver takes the function over" give $device vfio-pci
cases ioat --device $device --interface type1
check "Linux's driver takes it back" give $device ioatdma
check "dmatest makes 200 copies without a failure after vdk" copies 200
