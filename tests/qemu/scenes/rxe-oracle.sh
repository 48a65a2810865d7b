# Puts rxe on the wire and obeys the oracle of the host; $oracle says what of it is carried out.
for place in all default eth0; do echo 0 >/proc/sys/net/ipv6/conf/$place/accept_dad; done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.0.1/24 dev eth0
ip -6 addr add fd00::1/64 dev eth0
check "rxe is put on the port" verbs link rxe0 eth0
gid() { grep -q "$1" /sys/class/infiniband/rxe0/ports/1/gids/*; }
check "the port has the GID of its IPv4 address" await 600 gid ffff:0a00:0001
check "the port has the GID of its IPv6 address" await 600 gid fd00:
# The name of the port depends on which device of its kind was found first.
verbs serve rxe0 /dev/vport*p1 &
pid=$!
check "the oracle comes to its end, and no frame is damaged that it did not damage" ask "oracle ${oracle:-all}"
check "every other ICRC is right and no frame malformed" ask judge
check "the program of the guest ends with it" wait $pid
