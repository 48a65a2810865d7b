
# Every kind of service, each end as the server, over IPv4 and over IPv6.
for place in "1 10.0.0.9" "2 fd00::9"; do
    gid=${place% *} address=${place#* }
    for service in rc uc ud; do
        words="pingpong --service $service --address $address --check --size 1024 -n 50"
        program="ibv_${service}_pingpong -d rxe0 -g $gid -c -s 1024 -n 50"
        guest_serves "ibv_${service}_pingpong with vdk as its client at $address" "$words" $program
        host_serves "ibv_${service}_pingpong with vdk as its server at $address" "$words" $program
    done
done
