"""What the arm64 guest runs: (name, seconds on a real processor, shell text).

The text is read after tests/arm64/functions. Names begin with the way that the
messages take: by memory of the host, by UDP (--wire), between two hosts, or by
iWARP.
"""
WAYS = {
    "same host": ("", ""),
    "wire": ("", "--wire"),
    "two hosts": ("hosts=10.91.0.1; ", ""),
    "iWARP": ("", "--iwarp"),
    "iWARP, two hosts": ("hosts=10.91.0.1; ", "--iwarp"),
}
ROCE = ("same host", "wire", "two hosts")


def over(ways, kind, what, name=None):
    """One function of tests/arm64/functions, in each of these ways."""
    for way in ways:
        before, options = WAYS[way]
        yield f"{way}: {name or what}", 5, f"{before}{kind} '{options}' {what}"


def machine():
    yield "pages of 16 KiB", 2, "grep -m 1 -x 'KernelPageSize: *16 kB' /proc/self/smaps"
    yield "ibv_devices", 3, "softhca run -- ibv_devices | grep softhca0"
    yield "ibv_devinfo", 3, "softhca run -- ibv_devinfo -v | grep 'GID.*RoCE v2'"
    yield "doctor", 10, "softhca doctor >doctor; cat doctor; ! grep FAIL doctor"


def tools():
    for op in ("write", "read", "send"):
        for figure, more in (("lat", "-n 100"), ("bw", "-n 100"), ("bw", "-n 100 -b -q 4 -s 20000")):
            yield from over(ROCE, "perftest", f"ib_{op}_{figure} {more}")
            yield from over(("iWARP", "iWARP, two hosts"), "perftest", f"ib_{op}_{figure} -R {more}")
    for figure in ("lat", "bw"):
        yield from over(ROCE, "perftest", f"ib_atomic_{figure} -n 100")
        yield from over(ROCE, "perftest", f"ib_send_{figure} -c UD -n 100 -s 1000")
    yield from over(ROCE, "perftest", "ib_write_lat -c UC -n 100")
    yield from over(ROCE, "perftest", "ib_send_lat -e -n 100")
    yield from over(ROCE, "perftest", "ib_write_bw -R -n 100")
    yield from over(ROCE, "perftest", "ib_write_lat -a -n 20")
    for kind in ("rc", "uc", "ud", "srq"):
        yield from over(ROCE, "pingpong", f"ibv_{kind}_pingpong -c -n 100 -s 1000")
        yield from over(ROCE, "pingpong", f"ibv_{kind}_pingpong -c -e -n 50 -s 1000")
    yield from over(ROCE, "pingpong", "ibv_rc_pingpong -c -n 20 -s 100000")
    for op in ("send", "write_imm", "read", "faa", "all"):
        yield from over(ROCE, "check", f"-o {op} -n 300 -q 2" + (" -s 8" if op == "faa" else " -s 1:9000"))


def connections():
    ways = (*ROCE, "iWARP", "iWARP, two hosts")
    yield from over(ways, "rping", "", "rping")
    yield from over(ways, "rstream", "rstream -p 7471 -I 20 -C 20 -S 5000")
    yield from over(ways, "rstream", "riostream -p 7471 -I 20 -C 20 -S 5000")
    for way in ways:
        before, options = WAYS[way]
        to = "10.91.0.1" if before else "127.0.0.1"
        yield (f"{way}: ucmatose", 5, f"{before}cm '{options}' 7174 'ucmatose -p 7174 -c 4 -C 10 -S 3000' "
               f"'ucmatose -p 7174 -c 4 -C 10 -S 3000 -s {to}'")
        yield (f"{way}: rdma_client", 5, f"{before}cm '{options}' 7471 'rdma_server -p 7471' 'rdma_client -p 7471 -s {to}'")
        yield (f"{way}: iperf3 over sockets", 5, f"{before}pair tcp 5201 '--sockets {options}' 'iperf3 -s -1' "
               f"'iperf3 -n 2M -c {to}' && grep 'iperf Done' client")
    for way in ROCE:
        before, options = WAYS[way]
        to = "10.91.0.1" if before else "127.0.0.1"
        yield f"{way}: udaddy", 5, f"{before}cm '{options}' 7174 'udaddy -c 4 -C 10' 'udaddy -c 4 -C 10 -s {to}'"


def recordings():
    """Every request must be in the recording, with its end."""
    for way, (before, options) in WAYS.items():
        tool = "ib_write_bw -R" if "iWARP" in way else "ib_write_bw"
        record = f"{before}perftest '--trace=/tmp/events {options}' {tool} -n 50 -s 8192"
        yield (f"{way}: --trace", 8, f"{record} && softhca trace --rows=0 events >table; head -20 table; "
               "[ $(grep -cE '^ +(0|0x[0-9a-f]+) 0x[0-9a-f]{6} write' table) -ge 50 ] && "
               "! grep 'not completed' table")
    for way in ("wire", "two hosts", "iWARP"):
        before, options = WAYS[way]
        tool = "ib_write_bw -R" if "iWARP" in way else "ib_write_bw"
        yield (f"{way}: --pcap", 5, f"{before}perftest '--pcap=/tmp/packets {options}' {tool} -n 50 -s 8192 && "
               "[ $(wc -c <packets) -gt 400000 ]")
    yield ("wire: --loss", 10, "check '--wire --loss=2 --seed=3' -o all -n 200 -s 1:9000")
    yield ("same host: --check finds nothing", 5, "check --check -o all -n 200 && ! grep 'softhca: check' client server")


CASES = [case for part in (machine, tools, connections, recordings) for case in part()]
