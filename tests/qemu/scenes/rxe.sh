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
check "the port has the GID of its IPv4 address" await 50 gid 1 ffff:0a00:0001
check "the port has the GID of its IPv6 address" await 50 gid 2 fd00:
counter() { cat "/sys/class/infiniband/rxe0/ports/1/hw_counters/$1"; }
listens() { netstat -ltn | grep -q ":18515 "; }

# A program of the guest as the server, and vdk as the client. The words of vdk are one argument.
guest_serves() { # sentence vdk-words program...
    local sentence=$1 words=$2 pid host
    shift 2
    timeout 100 "$@" >/tmp/guest.out 2>&1 </dev/null &
    pid=$!
    await 100 listens
    ask "start vdk roce $words 127.0.0.1 --port {guest} --wire unix:{wire}" >/dev/null 2>&1
    host=$(ask "wait 60" 2>&1) || { failed "$sentence: vdk: $host"; kill $pid; wait $pid; cat /tmp/guest.out; return; }
    if wait $pid; then ok "$sentence"; else failed "$sentence: $(tail -n 3 /tmp/guest.out | tr '\n' ' ')"; fi
}

# vdk as the server, and a program of the guest as the client, which gets the place of the server.
host_serves() { # sentence vdk-words program...
    local sentence=$1 words=$2 port host status=0
    shift 2
    ask "start vdk roce $words --port {host} --wire unix:{wire}" >/dev/null 2>&1
    port=$(ask listening 2>&1) || { failed "$sentence: vdk: $port"; return; }
    timeout 100 "$@" -p "$port" 10.0.2.2 >/tmp/guest.out 2>&1 </dev/null || status=$?
    host=$(ask "wait 60" 2>&1) || { failed "$sentence: vdk: $host"; cat /tmp/guest.out; return; }
    if [ $status = 0 ]; then ok "$sentence"; else failed "$sentence: $(tail -n 3 /tmp/guest.out | tr '\n' ' ')"; fi
}
