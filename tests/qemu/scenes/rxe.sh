# Brings up rxe on the wire, and plays a program of the guest against one of the host.

echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
ip link set lo up
ip link set eth0 up
ip link set eth1 up
ip addr add 10.0.0.1/24 dev eth0
ip -6 addr add fd00::1/64 dev eth0
ip addr add 10.0.2.15/24 dev eth1
check "rxe is put on the port" rdma link add rxe0 type rxe netdev eth0
# The GIDs come by and by: fe80 at 0, the addresses after it in the order in which they were given.
gid() { grep -q "$2" "/sys/class/infiniband/rxe0/ports/1/gids/$1"; }
check "the port has the GID of its IPv4 address" await 600 gid 1 ffff:0a00:0001
check "the port has the GID of its IPv6 address" await 600 gid 2 fd00:
counter() { cat "/sys/class/infiniband/rxe0/ports/1/hw_counters/$1"; }
# The wire that vdk is at.
wire=unix:{wire}
listens() { netstat -ltn | grep -q ":18515 "; }


# A program of the guest as the server, and vdk as the client. The words of vdk are one argument.
# What vdk said is left in $host.
guest_serves() { # sentence vdk-words program...
    local sentence=$1 words=$2 pid status=0
    shift 2
    timeout 100 "$@" >/tmp/guest.out 2>&1 </dev/null &
    pid=$!
    await 300 listens
    ask "start vdk roce $words 127.0.0.1 --port {guest} --wire $wire" >/dev/null 2>&1
    if ! host=$(ask "wait 80" 2>&1); then
        kill $pid
        failed "$sentence: vdk: $host"
        wait $pid
        return 1
    fi
    wait $pid || status=$?
    ended $status "$sentence"
}

# vdk as the server, and a program of the guest as the client, which gets the place of the server.
host_serves() { # sentence vdk-words program...
    local sentence=$1 words=$2 port status=0
    shift 2
    ask "start vdk roce $words --port {host} --wire $wire" >/dev/null 2>&1
    port=$(ask listening 2>&1) || { failed "$sentence: vdk: $port"; return 1; }
    timeout 100 "$@" -p "$port" 10.0.2.2 >/tmp/guest.out 2>&1 </dev/null || status=$?
    host=$(ask "wait 80" 2>&1) || { failed "$sentence: vdk: $host"; return 1; }
    ended $status "$sentence"
}

ended() { # status sentence
    [ "$1" != 0 ] || return 0
    failed "$2: it ended with $1: $(tail -n 3 /tmp/guest.out | tr '\n' ' ')"
    return 1
}

# One run of perftest: both roles by name, the data compared where it is known where it must be.
# Further words of vdk are in $faults.
perftest() { # guest|host program size mtu gid count words-of-program...
    local role=$1 program=$2 size=$3 mtu=$4 gid=$5 count=$6 operation words address=10.0.0.9 half offset place sentence
    local compared=yes
    shift 6
    [ $gid = 1 ] || address=fd00::9
    operation=${program#ib_}
    case "$operation $*" in
        atomic*CMP*) words="bw --operation compare-swap" ;;
        atomic*) words="bw --operation fetch-add" ;;
        *_lat*) words="lat --operation ${operation%_lat} --size $size" ;;
        *) words="bw --operation ${operation%_bw} --size $size" ;;
    esac
    case "$*" in
        *UC*) words="$words --service uc" ;;
        # An address stands before each datagram, of a size that the tool rounds in its own way.
        *UD*) words="$words --service ud" compared=no ;;
    esac
    words="$words --mtu $mtu --address $address -n $count --timeout ${timeout:-18} --patience 60 $faults"
    words="$words --capture {folder}/peer.pcap --memory {folder}/peer.memory"
    sentence="$program${*:+ $*} of $size bytes by $mtu to $address, the $role serves"
    # Two halves, of which the first is the own, the second the other end's; a little longer with
    # datagrams.
    half=$size
    [ $half -ge 4096 ] || half=4096
    rm -f /memory
    head -c $((2 * half + 8192)) /dev/zero >/memory
    ${role}_serves "$sentence" "$words" $program -d rxe0 -x $gid -F -m $mtu -n $count -s $size --mmap=/memory "$@" || return 1
    if [ $compared = yes ] && [ $size -gt 2048 ] && [ "${operation%_bw}" != "$operation" ]; then
        place=$(((size + 40 + 4095) / 4096 * 4096)) offset=0
        [ $role = host ] || { place=0 offset=$half; }
        if [ "$(ask "memory $place $size")" != "$(part /memory $offset $size)" ]; then
            failed "$sentence: the data differ"
            return 1
        fi
    fi
    kept "$sentence" || return 1
    [ -n "$faults" ] || ok "$sentence"
}
faults=

# What the injector of vdk has in its log: `log sent dropped`.
log() { echo "$host" | sed 's/.*"'$1'": {\([^}]*\)}.*/\1/' | grep -o "\"$2\": [0-9]*" | grep -o '[0-9]*$'; }

# Has the host look at the capture: no frame in it may be damaged but those that the injector
# damaged. Leaves in $captured how many frames it has, how many damaged ones, how many of the guest.
kept() { # sentence
    local damaged=0
    [ -z "$faults" ] || damaged=$(log sent damaged)
    captured=$(ask "captured $damaged" 2>&1) || { failed "$1: its capture: $captured"; return 1; }
}

part() { tail -c +$(($2 + 1)) "$1" | head -c $3 | sha256sum | cut -d' ' -f1; }
