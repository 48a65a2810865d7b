# Resets that hit several functions, errors of a port, virtual functions.
for function in 0000:01:00.0 0000:01:00.1 0000:02:00.0 0000:03:00.0 0000:04:00.0; do
    check "$function is bound to vfio-pci" give $function vfio-pci
done
cases vfio-hot-reset --device 0000:01:00.0 --interface "$interface" --set sibling=0000:01:00.1
cases edu --device 0000:01:00.1 --interface "$interface"
cases vfio-hot-link --device 0000:04:00.0 --interface "$interface"
# The kernel takes a token by the group only.
[ "$interface" != type1 ] ||
    cases vfio-token --device 0000:02:00.0 --interface "$interface" --set vf=0000:02:10.0
cases vfio-virtual --device 0000:02:00.0 --interface "$interface" --set vf=0000:02:10.0
cases nvme-port-error --device 0000:03:00.0 --interface "$interface" --set port=rp3
