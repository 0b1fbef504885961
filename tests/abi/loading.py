"""Loads libraries and prints what the process got; test_abi.py runs it in the
environment that it tests.

    loading.py LIBRARY...    prints the files mapped as libibverbs and librdmacm
    loading.py               prints the number of threads, and the descriptors above 2
"""
import ctypes
import os
import sys

for name in sys.argv[1:]:
    ctypes.CDLL(name)
if len(sys.argv) > 1:
    with open("/proc/self/maps") as maps:
        print(*sorted({line.split()[5] for line in maps if "/libibverbs.so" in line or "/librdmacm.so" in line}))
else:
    opened = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd") if int(n) > 2]
    print(len(os.listdir("/proc/self/task")), sorted(os.readlink(fd) for fd in opened if os.path.exists(fd)))
