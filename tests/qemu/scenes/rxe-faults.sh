
# Faults on purpose on the host's side, each way. Linux's counters must agree with what was done.

counters() {
    for counter in sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_seq_err completer_retry_err; do
        eval "$1_$counter=$(counter $counter)"
    done
}

more() { eval "echo \$((now_$1 - before_$1))"; }

# Adds to $wrong when the two numbers are not as they should be.
must() { # what number -eq|-le|-ge|-gt number
    [ "$2" "$3" "$4" ] || wrong="$wrong; $1: $2 $3 $4 does not hold"
}

faulty() { # kinds percent guest|host program size count words-of-program...
    local kinds=$1 percent=$2 role=$3 program=$4 size=$5 count=$6 kind wrong= sentence frames bad guest sound sent
    shift 6
    faults="--json --seed $((seed = seed + 1))"
    for kind in $kinds; do faults="$faults --$kind $percent"; done
    sentence="$program${*:+ $*} with $percent % $kinds, the $role serves"
    counters before
    perftest $role $program $size 1024 1 $count "$@" || return
    counters now
    # The capture is between the injector and the guest: all frames, damaged ones, the guest's.
    set -- $captured "$@"
    frames=$1 bad=$2 guest=$3
    shift 3
    sound=$((frames - bad - guest))
    sent=$(($(log sent frames) - $(log sent dropped) + $(log sent duplicated)))
    must "frames that passed the injector" $((frames - guest)) -eq $sent
    must "frames of the guest in the log" $(log received frames) -eq $guest
    must "damaged frames" $bad -eq $(log sent damaged)
    must "damaged frames" $bad -ge $(log sent corrupted)
    # What comes when the guest has given up its queue pair is not counted there.
    must "rcvd_pkts" $(more rcvd_pkts) -le $sound
    must "rcvd_pkts" $(more rcvd_pkts) -ge $((sound - 64))
    must "sent_pkts" $(more sent_pkts) -ge $guest
    case "$kinds $program $role" in
        # vdk asks: each copy of a request is a duplicate, and none is out of order.
        "duplicate ib_write_bw guest")
            must "duplicate_request" $(more duplicate_request) -ge $(log sent duplicated)
            must "out_of_seq_request" $(more out_of_seq_request) -eq 0
            ;;
        # A request is missing when the next one comes.
        "loss ib_write_bw guest" | "reorder ib_write_bw guest" | "corrupt ib_write_bw guest")
            must "out_of_seq_request" $(more out_of_seq_request) -gt 0
            ;;
        # The guest asks and is told what is missing, or hears nothing.
        "loss ib_write_bw host" | "reorder ib_write_bw host" | "corrupt ib_write_bw host")
            must "rcvd_seq_err" $(($(more rcvd_seq_err) + $(more completer_retry_err))) -gt 0
            must "duplicate_request" $(more duplicate_request) -eq 0
            ;;
    esac
    case "$* $role" in
        # Every addition was done once: what is in vdk's memory is their number.
        *FETCH*" host") must "sum" "$(ask "sum 4096 4096")" -eq $count ;;
    esac
    if [ -z "$wrong" ]; then ok "$sentence"; else
        failed "$sentence$wrong"
        echo "captured $captured; $host"
        for counter in sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_seq_err completer_retry_err; do
            echo "$counter $(more $counter)"
        done
    fi
    faults=
}

# A slow guest is no silent one: vdk waits half a second before it sends again.
seed=0 timeout=17
for percent in 1 10; do
    count=10
    [ $percent = 1 ] || count=5
    for kind in loss duplicate reorder corrupt; do
        for role in guest host; do
            for test in write read; do faulty $kind $percent $role ib_${test}_bw 65536 $count; done
        done
    done
    # All at once: most of the time goes by until an answer is given up.
    for role in guest host; do
        faulty "loss duplicate reorder corrupt" $percent $role ib_send_bw 8192 $((2 * count))
        for test in CMP_AND_SWAP FETCH_AND_ADD; do
            faulty "loss duplicate reorder corrupt" $percent $role ib_atomic_bw 8 $((10 * count)) -A $test
        done
    done
    # As the server the tool stays to the end. As the client it leaves with its last message, and
    # an acknowledgement that was lost then never comes.
    words="pingpong --check --size 4097 -n $count --timeout 17 --patience 60 --capture {folder}/peer.pcap"
    faults="--json --seed $percent"
    for kind in loss duplicate reorder corrupt; do faults="$faults --$kind $percent"; done
    sentence="ibv_rc_pingpong -c with $percent % of each, the guest serves"
    guest_serves "$sentence" "$words $faults" ibv_rc_pingpong -d rxe0 -g 1 -c -s 4097 -n $count -m 1024 &&
        kept "$sentence" && ok "$sentence"
    faults=
done
check "every ICRC is right that was not damaged on purpose, and no frame malformed" ask judge
