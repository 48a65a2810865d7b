
# Every test and role over IPv4 and IPv6.
for gid in 1 2; do
    for role in guest host; do
        for test in write read send; do perftest $role ib_${test}_bw 65536 1024 $gid 20; done
        for test in CMP_AND_SWAP FETCH_AND_ADD; do perftest $role ib_atomic_bw 8 1024 $gid 100 -A $test; done
        for test in write send; do perftest $role ib_${test}_lat 64 1024 $gid 50; done
    done
done

# Every length, and every path MTU with a message of one byte more; role and address change from
# one to the next.
turn=0
for test in write read send; do
    for place in 256,257 512,513 1024,1 1024,1023 1024,1024 1024,1025 2048,2049 4096,4095 4096,4096 4096,4097 4096,65536; do
        role=guest gid=$((turn / 2 % 2 + 1))
        [ $((turn % 2)) = 0 ] || role=host
        perftest $role ib_${test}_bw ${place#*,} ${place%,*} $gid 20
        turn=$((turn + 1))
    done
done
# The services that promise nothing, on a wire that loses nothing.
for role in guest host; do
    for test in write send; do perftest $role ib_${test}_bw 65536 4096 1 20 -c UC; done
    perftest $role ib_send_bw 4096 4096 2 20 -c UD
    perftest $role ib_send_lat 64 1024 1 50 -c UC
    perftest $role ib_send_lat 64 1024 2 50 -c UD
done
for test in write read send; do
    perftest guest ib_${test}_bw 8388608 4096 1 5
    perftest host ib_${test}_bw 8388608 4096 2 5
done
check "every ICRC is right and no frame malformed" ask judge
