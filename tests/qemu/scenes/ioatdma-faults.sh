# Linux's ioatdma when the emulated engine halts or loses a completion: it must recover.
device=0000:00:07.0
dmatest=/sys/module/dmatest/parameters

driven() { [ "$(basename "$(readlink /sys/bus/pci/devices/$device/driver)")" = ioatdma ]; }
copies() { # iterations
    dmesg -c >>/tmp/log
    echo "$1" >$dmatest/iterations
    echo 5000 >$dmatest/timeout
    echo dma0chan0 >$dmatest/channel
    echo 1 >$dmatest/run
    cat $dmatest/wait >/dev/null
    dmesg | grep -E 'dmatest|ioatdma' | tail -n 30
    dmesg | grep -q "summary $1 tests"
}
without_failure() { copies "$1" && dmesg | grep -q "summary $1 tests, 0 failures"; }

check "Linux's ioatdma probes the stub" driven
check "dmatest goes on through halts and a lost completion" copies 300
check "the driver saw the errors" sh -c 'dmesg | grep -q "ioatdma.*\(Err\|CHANERR\|error\|reset\)"'
check "after the last fault dmatest makes 300 copies without a failure" without_failure 300
