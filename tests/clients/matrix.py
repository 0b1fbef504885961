#!/usr/bin/python3
"""docs/CLIENTS.md: which programs have been run, by the results of their tests.

    tests/clients/matrix.py [--failed] [FAMILY...]   runs these (or all), writes the page
    tests/clients/matrix.py --list                   the names
    tests/clients/matrix.py --write                  writes it from what is recorded

Any run of pytest with SOFTHCA_RESULTS=FILE records there how each case ended
(tests/conftest.py), so the page can come from parts; "make test-full" is one of
all. Of a family without any record here the page keeps what it says. A family is a program or library: its packages, of
which Debian's dpkg knows the version, what is run, and patterns of its cases. One of another release ("trixie/" before its
packages) is run by "make test-packages", which records its versions as well.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "CLIENTS.md")
RECORD = os.path.join(os.environ.get("SOFTHCA_BUILD", os.path.join(ROOT, "build")), "clients.json")

Family = collections.namedtuple("Family", "packages what cases flaws")
FAMILIES = {
    "ibverbs-utils": Family(
        "ibverbs-utils", "ibv_devices, ibv_devinfo; ibv_rc_, uc_, ud_, srq_ and xsrq_pingpong with every byte checked: "
        "sizes, path MTUs, polling and events, IPv4 and IPv6, with losses",
        ["test_utils.py::", "test_verbs.py::test_xsrq", "test_data.py::test_loss_pingpong"],
        ["The ping-pongs end without a farewell: where the acknowledgement of the last message is lost after the other "
         "has gone, one of them reports a failed completion."]),
    "perftest": Family(
        "perftest", "ib_send_, write_, read_ and atomic_ _lat and _bw: RC, UC, UD and XRC; all sizes, both directions, "
        "many QPs, lists, events, inline, SRQs, path MTUs, every GID, multicast, extended posting, with losses",
        ["test_perftest.py::", "test_verbs.py::test_perftest", "test_data.py::test_loss_perftest"],
        ["On UC and UD it waits indefinitely for messages that are lost: nothing holds back its sender, and a receiver's "
         "socket has room for so many.",
         "Writes have no events (-e).",
         "With -q, a -n that is no multiple of --cq-mod (100, or what -l says): every completion counts as --cq-mod, so "
         "`ib_*_bw` can stop polling before its slowest QP has posted all, and stands.",
         "The group that -M has by default is interface-local (ff01::), which does not reach other hosts: name one."]),
    "perftest over rdma_cm": Family(
        "perftest", "the same tools with -R, and with -z", ["test_cm_tools.py::test_perftest"],
        ["-R is for RC and UD, and for IPv4; it refuses UC, XRC and DC itself.",
         "-z creates its own queue pairs; with -c XRC it posts receives to its XRC_SEND QP, which no device accepts, and "
         "the server waits.",
         "A client whose second connection is refused (-q 2 to a server of one, or one that does not listen yet) frees "
         "its event channel with free(3) and then destroys it: a use after free, by valgrind, and now and then SIGSEGV or "
         "SIGABRT. Refused its first one it says \"Unexpected CM event bl blka 8\" and ends."]),
    "rdmacm-utils": Family(
        "rdmacm-utils", "rping, ucmatose, udaddy, rdma_client and rdma_server, rdma_xclient and rdma_xserver, cmtime, "
        "mckey: IPv4 and IPv6, many clients of one server, multicast",
        [r"test_cm_tools.py::test_(rping|ucmatose|udaddy|rdma_|cmtime|mckey)"],
        ["rping destroys its channel while another thread of it reads there: \"rdma_get_cm_event: Bad file descriptor\" "
         "at its end.",
         "rping's server with -P loses one of two requests that arrive together, and handles the other twice: it keeps "
         "the last request in a single variable until its main thread reads it. Clients then wait indefinitely, "
         "on any device.",
         "cmtime's server runs until it is killed.",
         "mckey must join before the sender sends; it waits for nothing but its number of packets. So does udaddy, "
         "indefinitely if a datagram is lost."]),
    "rsockets' tools": Family(
        "rdmacm-utils", "rstream, riostream, udpong, rcopy: all their tests, sizes, IPv4 and IPv6, fork, with losses",
        [r"test_rsocket.py::test_(rstream|riostream|udpong|rcopy)"], []),
    "qperf": Family(
        "qperf", "its RC tests over rdma_cm (-cm 1): latency, bandwidth, message rate, read, write, atomics",
        ["test_cm_tools.py::test_qperf"],
        ["Its UC and UD tests ignore -cm 1 (qperf says so) and address their peer by LID, which every RoCE device "
         "refuses with EINVAL: \"failed to modify QP to RTR\", \"failed to create address handle: Invalid argument\"."]),
    "fio": Family(
        "fio", "ioengine=rdma: write, read and send, checksums verified by the receiver", ["test_cm_tools.py::test_fio"],
        ["Its client asks for no RNR retries: with verb=send the server needs receives posted within half a second; as "
         "many as there are blocks is safe.",
         "One-sided, its other end does not look at its memory: only send can be verified (verify=, on the client with "
         "do_verify=0)."]),
    "pyverbs": Family(
        "python3-pyverbs", "rdma-core's own tests of verbs; what skips itself is in [VERBS.md](VERBS.md#tests-that-skip)",
        ["test_pyverbs.py::"], []),
    "UCX": Family(
        "ucx-utils", "ucx_perftest over rc_v and ud_v: tag, stream, active messages, put, get, atomics",
        [r"test_cm_tools.py::test_ucx\["],
        ["It aborts where /sys is not mounted.",
         "ucx_perftest exchanges its addresses over TCP; UCX connects by rdma_cm with UCX_SOCKADDR_TLS_PRIORITY=rdmacm."]),
    "UCX over rdma_cm": Family(
        "libucx0", "ucp_client_server, UCX's example: stream, tag, active messages; IPv4 and IPv6",
        ["test_cm_tools.py::test_ucx_rdmacm"], []),
    "libfabric": Family(
        "libfabric-bin", "fi_pingpong, provider verbs: endpoints msg, dgram, and rdm over ofi_rxm, data checked",
        ["test_cm_tools.py::test_fi_pingpong"], []),
    "RPCs over libfabric": Family(
        "libfabric1", "a program of our own in the manner of Mercury, over verbs;ofi_rxm: requests and answers, bulk "
        "transfers both ways by the peer's keys, canceled receives, progress by FI_WAIT_FD, 1,000 endpoints; every byte "
        "checked; also InfiniBand, iWARP and with losses. Debian 13's libfabric 2.1 beside it, and both as each other's peer",
        ["test_fabric_rpc.py::"],
        ["By libfabric's defaults an endpoint of verbs;ofi_rxm has 50 MiB of buffers. With FI_OFI_RXM_BUFFER_SIZE=2048, "
         "FI_OFI_RXM_MSG_TX_SIZE=16, FI_OFI_RXM_MSG_RX_SIZE=16 and FI_OFI_RXM_USE_SRX=1 it has 6 MiB, and ten descriptors.",
         "A completion queue has room for FI_UNIVERSE_SIZE peers, 256 by default. With more it overruns, and nothing more "
         "completes.",
         "Where lo is the only interface it finds no device: it leaves out the addresses of lo."]),
    "Open MPI over UCX": Family(
        "openmpi-bin libucx0", "four ranks on one host and on two: point to point, collectives, one-sided",
        [r"test_mpi.py::test_mpi\[.*openmpi-ucx"],
        ["At the end of one-sided windows each rank closes its connections in turn, and for each waits 17 s until the "
         "retries towards a QP that its peer has already destroyed are exhausted. UCX_RC_VERBS_TIMEOUT=100ms shortens "
         "that."]),
    "Open MPI over libfabric": Family(
        "openmpi-bin libfabric1", "the same, by verbs;ofi_rxm", [r"test_mpi.py::test_mpi\[.*openmpi-libfabric"],
        ["Ranks on one host use shared memory unless told otherwise: [CLUSTERS.md](CLUSTERS.md)."]),
    "MPICH over UCX": Family(
        "mpich libucx0", "the same; Debian's is built for UCX alone", [r"test_mpi.py::test_mpi\[.*mpich"], []),
    "the lines of CLUSTERS.md": Family(
        "openmpi-bin mpich slurmd", "Open MPI over UCX and libfabric, MPICH, on two hosts, through a launcher in place of "
        "ssh; Open MPI and MPICH over UCX, on two nodes, by srun", [r"test_clusters.py::test_(line|slurm)\["], []),
    "PyTorch": Family(
        "python3-torch", "--sockets: torchrun on two hosts, DistributedDataParallel over gloo", ["test_clusters.py::test_torchrun"],
        ["1.13's torchrun fails on Python 3.11 unless it is given -r and -t (\"'NoneType' object has no attribute 'get'\")."]),
    "gloo": Family(
        "libgloo0", "its transport over verbs: three ranks, allreduce in a ring, sums checked",
        ["test_clusters.py::test_gloo"],
        ["It aborts when a buffer is destroyed whose send has not completed (\"Destructing buffer expecting "
         "completions\"), and has no way to wait for that: keep algorithms until the end."]),
    "tgt and libiscsi": Family(
        "tgt libiscsi7", "iSER, within a host and between two: libiscsi's iscsi-inq, -readcapacity16, -perf, and of iscsi-test-cu reads and writes, against a "
        "disk of tgtd", ["test_storage.py::"],
        ["tgtd keeps the port of --iser in a short: \"unable to get address info\" above 32767. It wants the initiator's "
         "name bound (-Q), also with -I ALL.",
         "libiscsi 1.19 has buffers of 256 KiB for iSER, and corrupts its heap when it refuses a longer "
         "request (\"Libiscsi-iSER supports messages smaller than 512k\"): qemu-img convert, whose requests have"
         " 2 MiB, says \"Cannot allocate memory\" or crashes. qemu-io, qemu-img bench, and qemu-img dd bs=256k "
         "from the disk work.",
         "It announces 8 KiB of immediate data in each write by iSER, and sends none. The kernel's LIO closes "
         "the connection then (\"PDU declares 8192 data bytes but only 76 bytes were received\"): set "
         "ImmediateData=No there. tgtd grants none.",
         "It cancels the thread of a connection by iSER, does not wait for its end, and frees what it uses. A "
         "program that connects twice crashes now and then, or its second login fails (\"Conn disconnected "
         "event\"): iscsi-test-cu, with LIO nearly always, and qemu-img dd to the disk.",
         "iscsi-ls takes no iser://. A login that is not answered within a second fails (\"revents is not "
         "POLLIN\"): LIO takes so long where a session of that name has not ended."]),
    "QEMU": Family(
        "qemu-system-x86", "migration over rdma: of a machine whose memory changes, with rdma-pin-all and without", ["test_migration.py::"], []),
    "over iWARP": Family(
        "perftest rdmacm-utils qperf fio libfabric-bin", "--iwarp, on one host and on two, there also with segments of 1448 "
        "bytes: perftest -R, rping, ucmatose, rdma_client and rdma_server, rstream, qperf, fio, fi_pingpong",
        [r"test_iwarp.py::test_(perftest|rping|ucmatose|rdma_client|rstream|qperf|fio|fi_pingpong)"],
        ["ib_send_bw -R -e hangs now and then; two of qperf's tests need immediate data, which iWARP has "
         "not: [IWARP.md](IWARP.md#programs)."]),
    "over InfiniBand": Family(
        "ibverbs-utils perftest rdmacm-utils qperf libucx0 libfabric-bin openmpi-bin", "--infiniband, on one host and on two: the "
        "ping-pongs without -g, perftest without -x, qperf without -cm, ucx_perftest by LIDs and by GIDs, fi_pingpong, rping, "
        "udaddy; Open MPI over UCX, of its own choice and by LIDs alone (UCX_IB_ADDR_TYPE=ib_local), and over libfabric; three "
        "programs in the manner of tutorials",
        [r"test_infiniband.py::test_(pingpong|xsrq|perftest|qperf|ucx|fi_pingpong|mpi|classic\[|rping|udaddy)"], []),
    "infiniband-diags": Family(
        "infiniband-diags srptools ibacm opensm ibverbs-utils", "--infiniband, over our libibumad: ibstat, ibstatus, ibaddr, "
        "smpquery, perfquery, sminfo, ibnetdiscover, iblinkinfo, ibhosts, ibswitches, ibnodes, ibtracert, ibroute, "
        "ibqueryerrors, ibcacheedit, saquery; ibping and ibsysstat with their servers, on one host and on two; srp_daemon -o, "
        "ibacm with ib_acme, ibv_asyncwatch; opensm over --fabric; most of them over ibsim as well, with the same file, and what they "
        "print compared", ["test_umad.py::", "test_ibsim.py::"],
        ["A server of ibsysstat that is not there is reported as \"sysstat ping succeeded\": ibsysstat does not look at the "
         "status of the answer, on any device."]),
    "infiniband-diags of Debian 13": Family(
        "trixie/infiniband-diags trixie/srptools trixie/ibacm trixie/opensm trixie/ibsim-utils", "the same tests, in a bare "
        "Debian 13 with softhca's package of it (`make test-packages`)", ["test_umad.py::", "test_ibsim.py::"], []),
    "several rails": Family(
        "perftest rdmacm-utils ucx-utils libfabric-bin openmpi-bin prometheus-node-exporter", "--rails=4 --names=mlx5_%d, on one "
        "host and on two: perftest, rping, ucx_perftest and Open MPI with messages over four rails (UCX_MAX_RNDV_RAILS=4), "
        "fi_pingpong and Open MPI over libfabric with FI_VERBS_IFACE, node_exporter; three programs of our own in the manner of "
        "a net plugin, a transfer engine and a P2P engine, with losses and with a rail that fails",
        ["test_rails.py::", "test_cm_tools.py::test_ucx_over_four_rails", "test_sysfs.py::test_node_exporter"], []),
    "iperf3": Family(
        "iperf3", "--sockets: both directions, parallel streams, IPv6", ["test_sockets.py::test_iperf3"], []),
    "curl": Family(
        "curl python3", "--sockets: files from Python's http.server; a server without RDMA", [
            r"test_sockets.py::test_(http|fall_back|explain_says)"], []),
    "redis": Family(
        "redis-tools", "--sockets: redis-server, redis-benchmark and redis-cli, pipelines, large values, a child that "
        "saves", ["test_sockets.py::test_redis"], []),
    "nginx": Family(
        "nginx", "--sockets: three workers", ["test_sockets.py::test_nginx"],
        ["Workers accept from a listener of their parent, so they serve over TCP, and the library says so "
         "([RSOCKETS.md](RSOCKETS.md))."]),
    "PostgreSQL": Family(
        "postgresql-15", "--sockets: pgbench and psql, a process per connection", ["test_sockets.py::test_postgres"], []),
    "what cannot work": Family(
        "perftest", "that the programs below say what the table says", ["test_cannot.py::"], []),
}
# Programs that cannot work: what, what is seen, why. test_cannot.py has those that are installed.
CANNOT = [
    ("raw_ethernet_bw and the like: raw packets, flow steering", "\"Unable to create QP\"; `--explain`: ibv_create_qp: "
     "EOPNOTSUPP: qp_type 8", "IBV_QPT_RAW_PACKET needs CAP_NET_RAW and is not RDMA"),
    ("`-c DC`, mlx5dv, efadv: one vendor's", "\"Unable to create QP\"; `--explain`: ibv_create_qp: EOPNOTSUPP: "
     "qp_type 255", "the device is no mlx5 or EFA device, and does not say that it is"),
    ("memory of a GPU: GPUDirect", "registering it fails", "the processor has to be able to map it: let the "
     "program copy (`NCCL_NET_GDR_LEVEL=LOC`)"),
    ("`rdma link`, NVMe-oF, NFS over RDMA, SMC, Lustre, iSER of the kernel", "\"Failed to open NETLINK_RDMA socket\", no "
     "device", "they are in the kernel, or ask it; softhca is in the process. Use rxe"),
    ("programs linked statically, or with a libibverbs of their own", "no device; softhca says \"is statically linked\", "
     "and `softhca doctor PROGRAM` what to do", "no library is loaded that could be replaced"),
    ("setuid programs, those with file capabilities", "no device; `softhca doctor PROGRAM`",
     "the loader ignores LD_PRELOAD: run a copy"),
    ("opensm, ibping, saquery (infiniband-diags)", "no umad device", "RoCE has no subnet manager, and no MADs for programs"),
    ("Go programs with --sockets", "they stay TCP", "they make system calls themselves"),
]


def release(family):
    """"trixie/", or of this one "": how what is recorded of it begins."""
    return re.match(r"([a-z]+/)?", FAMILIES[family].packages)[0]


def version(package, cases):
    if "/" in package:
        return cases.get(package, (None, None))[1]
    p = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], text=True, stdout=subprocess.PIPE,
                       stderr=subprocess.DEVNULL)
    return p.stdout if p.returncode == 0 and p.stdout else None


def belongs(case, family):
    return any(re.search(pattern, case) for pattern in FAMILIES[family].cases)


def record():
    try:
        with open(RECORD) as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


NOT_RUN = "not run"


def result(family, cases, known):
    """Of the cases that are known; what is recorded of others is old."""
    names = [release(family) + c for c in known if belongs(c, family)]
    cases = {c: cases[c] for c in names if c in cases}
    mine = collections.Counter(outcome for outcome, _ in cases.values())
    if not mine:
        return NOT_RUN
    words = [f"{mine['passed']} passed"] if mine["passed"] else []
    words += [f"**{mine['failed']} failed**"] if mine["failed"] else []
    if mine["skipped"]:
        why = {why for outcome, why in cases.values() if outcome == "skipped"}
        words.append(f"{mine['skipped']} skipped" + (f": {next(iter(why))}" if len(why) == 1 else ""))
    words += [f"{len(names) - len(cases)} not run"] if len(names) > len(cases) else []
    return ", ".join(words)


def rows(text):
    """What a page says of each family: versions and results."""
    return {m[1]: (m[2], m[3]) for m in re.finditer(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", text, re.M)}


def page(cases, known, before=""):
    with open("/etc/os-release") as f:
        system = re.search(r'^PRETTY_NAME="?([^"\n]*)', f.read(), re.M)[1]
    out = f"""# Programs

Unmodified programs and libraries that have been run over softhca, from the packages of {system}.
`make test-full` writes this page from the results of its cases (`tests/clients/matrix.py`, also family by family). Unless
something else is said, cases are run within a host by shared memory, by that without the kernel's copies, by UDP, on the
wire (`--wire`), and between two hosts, which are network namespaces. All of that is run on x86-64; on arm64 `make
test-arm64` runs perftest, ibverbs-utils, rdmacm-utils with rsockets, iperf3 and iWARP, in an emulated machine.

| program or library | package, version | what is run | cases |
|---|---|---|---|
"""
    for name, f in FAMILIES.items():
        versions = ", ".join(f"{p.partition('/')[2] or p} {version(p, cases) or 'not installed'}" for p in f.packages.split())
        said = result(name, cases, known)
        if said == NOT_RUN:
            versions, said = rows(before).get(name, (versions, said))
        out += f"| {name} | {versions} | {f.what} | {said} |\n"
    out += """
The Linux kernel's rxe as the other end: [INTEROP.md](INTEROP.md), and its disks: [STORAGE.md](STORAGE.md). MPI and other launchers: [CLUSTERS.md](CLUSTERS.md).

## Known flaws of these programs

They are the programs' own. The tests allow for them, and for nothing else.

| program | |
|---|---|
"""
    for name, f in FAMILIES.items():
        out += "".join(f"| {name} | {flaw} |\n" for flaw in f.flaws)
    out += """
## What cannot work

| programs | what they say | why |
|---|---|---|
"""
    out += "".join(f"| {a} | {b} | {c} |\n" for a, b, c in CANNOT)
    return out


def write(log=print):
    with open(PAGE) as f:
        text = page(record(), collect(), f.read())
    with open(PAGE, "w") as f:
        f.write(text)
    log(f"{os.path.relpath(PAGE, ROOT)} is written")


def collect():
    """All cases, the full matrix included."""
    p = subprocess.run(["/usr/bin/python3", "-m", "pytest", "-q", "--collect-only", "--no-header", "-p", "no:cacheprovider",
                        "-m", "full or not full", "tests/clients", "tests/pyverbs"],
                       cwd=ROOT, text=True, stdout=subprocess.PIPE)
    if p.returncode:
        sys.exit(p.stdout[-2000:])
    return [line for line in p.stdout.split("\n") if "::" in line]


def run(families, failed):
    before = record()
    cases = [c for c in collect() if any(belongs(c, f) for f in families if not release(f))
             and (not failed or before.get(c, ("failed",))[0] == "failed")]
    rc = 0
    for start in range(0, len(cases), 500):  # as many as a command line takes
        rc |= subprocess.run(["/usr/bin/python3", "-m", "pytest", "-q", "--no-header", "--tb=short", "-o",
                              f"cache_dir={ROOT}/build/pytest-cache", "-m", "full or not full", *cases[start:start + 500]],
                             cwd=ROOT, env={**os.environ, "SOFTHCA_RESULTS": RECORD}).returncode
    return rc


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--write", action="store_true", help="only write the page")
    ap.add_argument("--list", action="store_true", help="the families' names")
    ap.add_argument("--failed", action="store_true", help="only cases that have failed, or have not been run")
    ap.add_argument("family", nargs="*", help="all, if none is given")
    args = ap.parse_args()
    if unknown := [f for f in args.family if f not in FAMILIES]:
        ap.error(f"no such family: {unknown[0]}; there are: {', '.join(FAMILIES)}")
    if args.list:
        print("\n".join(FAMILIES))
        return 0
    rc = 0 if args.write else run(args.family or list(FAMILIES), args.failed)
    write()
    return rc


if __name__ == "__main__":
    sys.exit(main())
