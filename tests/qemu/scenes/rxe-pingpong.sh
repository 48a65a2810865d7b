
# Each message goes both ways and is checked byte by byte at both ends.
pingpong() { # guest|host service size mtu gid count
    local role=$1 service=$2 size=$3 mtu=$4 gid=$5 count=$6 address=10.0.0.9 words program sentence
    [ $gid = 1 ] || address=fd00::9
    words="pingpong --timeout 18 --patience 60 --service $service --mtu $mtu --address $address --check --size $size -n $count"
    program="ibv_${service}_pingpong -d rxe0 -g $gid -c -s $size -n $count"
    # The one for datagrams takes the MTU of the port.
    [ $service = ud ] || program="$program -m $mtu"
    words="$words --capture {folder}/peer.pcap"
    sentence="ibv_${service}_pingpong of $size bytes by $mtu to $address, the $role serves"
    ${role}_serves "$sentence" "$words" $program || return 1
    kept "$sentence" && ok "$sentence"
}

# Every service and role over IPv4 and IPv6.
for gid in 1 2; do
    for service in rc uc ud; do
        for role in guest host; do pingpong $role $service 1024 1024 $gid 50; done
    done
done

# Every length at every path MTU; role and address change from one to the next.
turn=0
for mtu in 256 512 1024 2048 4096; do
    for size in 1 $((mtu - 1)) $mtu $((mtu + 1)) 65536; do
        for service in rc uc; do
            # 65536 bytes by UC are long enough once.
            [ $service$size != uc65536 ] || [ $mtu = 1024 ] || continue
            role=guest gid=$((turn / 2 % 2 + 1))
            [ $((turn % 2)) = 0 ] || role=host
            pingpong $role $service $size $mtu $gid 5
            turn=$((turn + 1))
        done
    done
done
for size in 1 4095 4096; do
    for role in guest host; do pingpong $role ud $size 4096 1 10; done
done
pingpong guest rc 8388608 4096 1 2
pingpong host rc 8388608 4096 2 2
pingpong guest uc 8388608 4096 2 2
pingpong host uc 8388608 4096 1 2

# The other kinds of wire, each with a port of its own.
over() { # number wire
    local number=$1 wire=$2 role words sentence program
    ip link set eth$number up
    ip addr add 10.0.1$number.1/24 dev eth$number
    rdma link add rxe$number type rxe netdev eth$number || return 1
    await 600 grep -q "ffff:0a00:" /sys/class/infiniband/rxe$number/ports/1/gids/1
    words="pingpong --timeout 18 --patience 60 --address 10.0.1$number.9 --check --size 65536 -n 20"
    words="$words --capture {folder}/peer.pcap"
    program="ibv_rc_pingpong -d rxe$number -g 1 -c -s 65536 -n 20"
    for role in guest host; do
        sentence="ibv_rc_pingpong over ${wire%%:*}, the $role serves"
        ${role}_serves "$sentence" "$words" $program && kept "$sentence" && ok "$sentence"
    done
}
over 2 tcp:127.0.0.1:{tcp}
over 3 udp:127.0.0.1:{udp-peer},127.0.0.1:{udp}
over 4 unix-dgram:{wire}.vdk,{wire}.qemu
check "every ICRC is right and no frame malformed" ask judge
