# Puts rxe on the wire and obeys the oracle of the host.
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
ip link set lo up
ip link set eth0 up
ip addr add 10.0.0.1/24 dev eth0
check "rxe is put on the port" verbs link rxe0 eth0
gid() { grep -q ffff:0a00:0001 /sys/class/infiniband/rxe0/ports/1/gids/*; }
check "the port has the GID of its address" await 600 gid
# The name of the port depends on which device of its kind was found first.
verbs serve rxe0 /dev/vport*p1 &
pid=$!
check "the oracle comes to its end, and no frame is damaged that it did not damage" ask oracle
check "every other ICRC is right and no frame malformed" ask judge
check "the program of the guest ends with it" wait $pid
