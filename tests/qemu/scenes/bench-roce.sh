
# rxe with itself by perftest, and vdk with itself, in one guest and one run.

figure() { echo "figure: $*" >&3; echo "$*"; }
at() { netstat -ltn | grep -q ":$1 "; }

# The column of the row with the size, the last of which is the result. The rate of messages, the
# last column of five, is in millions a second.
column() { awk -v n="$2" -v s="$1" '$1 == s && NF >= n { value = NF == 5 && n == 5 ? $n * 1e6 : $n } END { print value + 0 }'; }

theirs() { # bw|lat operation size count column
    local program="ib_$2_$1 -d rxe0 -x 1 -F -m 4096 -s $3 -n $4"
    $program >/dev/null 2>&1 </dev/null &
    await 600 at 18515
    $program 127.0.0.1 2>&1 </dev/null | column $3 $5
    wait $!
}

ours() { # bw|lat operation size count column
    local words="roce $1 --operation $2 --mtu 4096 --size $3 -n $4 --timeout 18 --port 18516"
    rm -f /tmp/wire
    vdk $words --wire unix-listen:/tmp/wire --address 10.0.0.8 >/dev/null 2>&1 </dev/null &
    await 600 at 18516
    vdk $words 127.0.0.1 --wire unix:/tmp/wire --address 10.0.0.9 2>&1 </dev/null | column $3 $5
    wait $!
}

row() { # label unit better rxe vdk
    figure "$(awk -v l="$1" -v u="$2" -v b="$3" -v r="$4" -v o="$5" 'BEGIN {
        printf "%-34s %12.2f %12.2f %-6s %7.2f", l, r, o, u, (r && o ? (b == "more" ? o / r : r / o) : 0) }')"
}

figure "$(printf '%-34s %12s %12s %-6s %7s' 'path MTU 4096, both ends in one guest' 'rxe to rxe' 'vdk to vdk' '' ratio)"
for round in $(seq 1 "${rounds:-3}"); do
    for test in write read send; do
        # Columns: bytes, iterations, peak, average in MiB/s, messages.
        row "ib_${test}_bw, 64 KiB" MiB/s more "$(theirs bw $test 65536 1000 4)" "$(ours bw $test 65536 1000 4)"
    done
    row "ib_write_bw, 8 bytes" msg/s more "$(theirs bw write 8 5000 5)" "$(ours bw write 8 5000 5)"
    # Columns: bytes, iterations, minimum, maximum, typical.
    for test in write send; do
        row "ib_${test}_lat, 8 bytes, typical" us less "$(theirs lat $test 8 1000 5)" "$(ours lat $test 8 1000 5)"
    done
done
