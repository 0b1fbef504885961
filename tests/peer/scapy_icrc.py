"""Compares the ICRCs of frames with those that scapy computes.

Reads frames in hexadecimal, one a line; prints a JSON list of those that differ,
or null without scapy.
"""
import json
import sys

try:
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether
except ImportError:
    print(json.dumps(None))
    sys.exit()

bad = []
for line in sys.stdin:
    raw = bytes.fromhex(line)
    ip = Ether(raw).payload
    ip_raw = raw[14:14 + ip.len]
    if BTH not in ip or ip[BTH].compute_icrc(ip_raw) != ip_raw[-4:]:
        bad.append(line.strip()[:160])
print(json.dumps(bad))
