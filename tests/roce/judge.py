#!/usr/bin/env python3
"""scapy as a judge of vdk's RoCE frames: see `tests/run --only roce`.

  judge.py read OURS.pcap OURS.json
      reads vdk's frames with scapy, computes each invariant CRC anew, and compares all fields
      with what `vdk wire --json` says of the same file
  judge.py write COUNT SEED THEIRS.pcap THEIRS.expected
      makes frames with scapy, and notes what is in them
  judge.py compare THEIRS.json THEIRS.expected
      compares that with what `vdk wire --json` says

scapy knows the base transport header, AETH and the invariant CRC. The other headers are
written and read here by their layout in the standard.
"""

import json
import logging
import random
import struct
import sys

logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.contrib import roce  # noqa: E402
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.packet import Raw, raw  # noqa: E402
from scapy.utils import PcapReader, PcapWriter  # noqa: E402

NAMES = {v: k.upper() for v, k in roce._bth_opcodes.items()}
NAMES[0x16] = "RC_SEND_LAST_WITH_INVALIDATE"
NAMES[0x17] = "RC_SEND_ONLY_WITH_INVALIDATE"
IMMEDIATE = {0x03, 0x05, 0x09, 0x0B, 0x23, 0x25, 0x29, 0x2B, 0x65}
INVALIDATE = {0x16, 0x17}
REMOTE = {0x06, 0x0A, 0x0B, 0x0C, 0x26, 0x2A, 0x2B}
ACKNOWLEDGE = {0x0D, 0x0F, 0x10, 0x11, 0x12}
DATAGRAM = {0x64, 0x65}
NO_PAYLOAD = {0x0C, 0x11, 0x12, 0x13, 0x14, 0x81}


def named(opcode):
    """The name that vdk gives an opcode, in scapy's spelling."""
    name = opcode.upper().replace(" ", "_")
    return {"RC_CMPSWAP": "RC_COMPARE_SWAP", "RC_FETCHADD": "RC_FETCH_ADD"}.get(name, name)


def extension(opcode, body):
    """Reads the extension headers: what they say, and what follows them."""
    found = {}
    at = 0
    if opcode in DATAGRAM:
        at += 8
    if opcode in REMOTE:
        address, key, length = struct.unpack_from(">QII", body, at)
        found["remote"] = {"address": address, "key": key, "length": length}
        at += 16
    if opcode in (0x13, 0x14):
        at += 28
    if opcode in ACKNOWLEDGE:
        found["msn"] = struct.unpack_from(">I", body, at)[0] & 0xFFFFFF
        at += 4
    if opcode == 0x12:
        at += 8
    if opcode in INVALIDATE:
        at += 4
    if opcode in IMMEDIATE:
        found["immediate"] = struct.unpack_from(">I", body, at)[0]
        at += 4
    if opcode == 0x81:
        at += 16
    return found, len(body) - at


def differences(number, record, expected):
    wrong = []
    for key, value in expected.items():
        said = record.get(key)
        if key == "opcode":
            said = named(said or "")
        if said != value:
            wrong.append(f"frame {number}: {key} is {said!r} to vdk, {value!r} to scapy")
    for key in ("remote", "immediate", "msn"):
        if key in record and key not in expected:
            wrong.append(f"frame {number}: only vdk sees {key}")
    return wrong


def finish(frames, wrong):
    for line in wrong[:20]:
        print(line)
    print(f"{frames} frames compared, {len(wrong)} differences")
    sys.exit(1 if wrong or frames == 0 else 0)


def read(capture, report):
    records = json.load(open(report))["records"]
    wrong = []
    frames = 0
    for number, packet in enumerate(PcapReader(capture), 1):
        frames += 1
        record = records[number - 1]
        bth = packet[roce.BTH]
        carried = struct.pack(">I", bth.icrc)
        if bth.compute_icrc(None) != carried:
            wrong.append(f"frame {number}: invariant crc {carried.hex()} is wrong to scapy")
        if not record.get("icrc"):
            wrong.append(f"frame {number}: invariant crc is wrong to vdk")
        found, rest = extension(bth.opcode, raw(bth.payload))
        ip = packet[IP] if IP in packet else packet[IPv6]
        expected = {
            "opcode": NAMES.get(bth.opcode, "?"),
            "queue_pair": bth.dqpn,
            "psn": bth.psn,
            "ack_request": bool(bth.ackreq),
            "payload": rest - bth.padcount,
            "source": ip.src,
            "destination": ip.dst,
            **found,
        }
        if bth.version != 0 or bth.resv6 != 0 or bth.resv7 != 0:
            wrong.append(f"frame {number}: reserved bits are set")
        wrong += differences(number, record, expected)
    if len(records) != frames:
        wrong.append(f"vdk has {len(records)} records of {frames} frames")
    finish(frames, wrong)


def write(count, seed, capture, notes):
    rng = random.Random(seed)
    opcodes = [value for value in NAMES if not 0x40 <= value < 0x60]
    out = PcapWriter(capture, linktype=1)
    expected = []
    for _ in range(count):
        opcode = rng.choice(opcodes)
        word = lambda: rng.getrandbits(32)
        headers = b""
        if opcode in DATAGRAM:
            headers += struct.pack(">II", word(), word() & 0xFFFFFF | 0x100)
        if opcode in REMOTE:
            headers += struct.pack(">QII", rng.getrandbits(64), word(), word())
        if opcode in (0x13, 0x14):
            headers += struct.pack(">QIQQ", rng.getrandbits(64), word(), rng.getrandbits(64), rng.getrandbits(64))
        if opcode in ACKNOWLEDGE:
            headers += raw(roce.AETH(syndrome=rng.getrandbits(8), msn=word() & 0xFFFFFF))
        if opcode == 0x12:
            headers += struct.pack(">Q", rng.getrandbits(64))
        if opcode in INVALIDATE or opcode in IMMEDIATE:
            headers += struct.pack(">I", word())
        if opcode == 0x81:
            headers += bytes(16)
        length = 0 if opcode in NO_PAYLOAD else rng.choice([rng.randrange(9), rng.randrange(300), rng.randrange(4097)])
        pad = -length % 4
        bth = roce.BTH(
            opcode=opcode, solicited=rng.getrandbits(1), migreq=rng.getrandbits(1), padcount=pad,
            pkey=rng.getrandbits(16), fecn=rng.getrandbits(1), becn=rng.getrandbits(1),
            dqpn=word() & 0xFFFFFF | 0x100, ackreq=rng.getrandbits(1), psn=word() & 0xFFFFFF,
        )
        sport = 0xC000 | rng.getrandbits(14)
        if rng.getrandbits(1):
            ip = IP(src=f"10.0.{rng.randrange(256)}.1", dst="10.0.0.2", tos=rng.getrandbits(8), id=rng.getrandbits(16),
                    ttl=rng.randrange(1, 256), flags="DF")
        else:
            ip = IPv6(src=f"fd00::{rng.randrange(1, 65536):x}", dst="fd00::2", tc=rng.getrandbits(8), fl=rng.getrandbits(20),
                      hlim=rng.randrange(1, 256))
        udp = UDP(sport=sport, dport=4791, chksum=0) if isinstance(ip, IP) else UDP(sport=sport, dport=4791)
        body = headers + rng.randbytes(length) + bytes(pad)
        packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / ip / udp / bth / Raw(body)
        out.write(packet)
        found, rest = extension(opcode, body)
        assert rest - pad == length
        expected.append({"opcode": NAMES[opcode], "queue_pair": bth.dqpn, "psn": bth.psn, "ack_request": bool(bth.ackreq),
                         "payload": length, "source": ip.src, "destination": ip.dst, "icrc": True, **found})
    out.close()
    json.dump(expected, open(notes, "w"))


def compare(report, notes):
    records = json.load(open(report))["records"]
    expected = json.load(open(notes))
    wrong = []
    for number, (record, frame) in enumerate(zip(records, expected), 1):
        wrong += differences(number, record, frame)
    if len(records) != len(expected):
        wrong.append(f"vdk has {len(records)} records of {len(expected)} frames")
    finish(len(expected), wrong)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "read":
        read(*rest)
    elif command == "write":
        write(int(rest[0]), int(rest[1]), *rest[2:])
    else:
        compare(*rest)
