"""What the peer tests run: scenarios of the peer program, and the distribution's tools."""
MTUS = (256, 512, 1024, 2048, 4096)
# Scenarios that the path MTU matters to.
BY_MTU = ("rc_send rc_send_imm rc_write rc_write_imm rc_read rc_sge rc_mixed "
          "rc_reads_16 rc_send_inv rc_srq uc_send uc_send_imm uc_write "
          "uc_write_imm ud_send ud_send_imm rc_psn_wrap uc_psn_wrap rc_fence "
          "rc_zero_sge rc_rnr_middle err_behind_read").split()
# With --quick: at other MTUs, over IPv6 and over a lossy network.
QUICK = ("rc_path rc_send rc_write_imm rc_read rc_mixed rc_send_inv uc_send uc_write_imm ud_send_imm "
         "err_rkey err_short_recv err_ud").split()
QUICK_CM = ("rping", "ucmatose", "udaddy", "rejected by the server")
# What Linux 6.1 lacks; the newer kernel, with which --quick runs nothing, has it.
NEEDS_NEWER = ("rc_atomic_write", "err_atomic_write")
# These go on until they are stopped, while something else happens.
NOT_ALONE = ("rc_stream", "victims")
# Not for a network that loses packets: they count retries or events, or expect
# an answer that a QP in ERR does not give again.
UNDISTURBED = ("err_behind_read", "err_rd_atomic", "rc_solicited", "rc_solicited_imm", "uc_solicited",
               "ud_solicited", "uc_inline", "ud_inline", "uc_psn_wrap", "uc_reset")
NETEM = {
    "1 % loss": "loss 1%",
    "reordering": "delay 2ms reorder 30% 25%",
}

# (name, server, client). {gid} is the GID index of the side, {ip} the server.
PERFTEST = "-F -n 200 -x {gid}"
PERFTEST_BW = PERFTEST + " -s 16384"
# In cycles: perftest may calibrate a guest's clock for ever.
PERFTEST_LAT = PERFTEST + " -C"
TOOLS = [
    ("ibv_rc_pingpong", "ibv_rc_pingpong -e -g {gid}", "ibv_rc_pingpong -e -g {gid} {ip}"),
    ("ibv_rc_pingpong, 100 kB", "ibv_rc_pingpong -e -s 100000 -n 100 -g {gid}",
     "ibv_rc_pingpong -e -s 100000 -n 100 -g {gid} {ip}"),
    ("ibv_uc_pingpong", "ibv_uc_pingpong -e -n 200 -g {gid}", "ibv_uc_pingpong -e -n 200 -g {gid} {ip}"),
    ("ibv_ud_pingpong", "ibv_ud_pingpong -e -n 200 -g {gid}", "ibv_ud_pingpong -e -n 200 -g {gid} {ip}"),
    ("ibv_srq_pingpong", "ibv_srq_pingpong -e -q 4 -n 200 -g {gid}",
     "ibv_srq_pingpong -e -q 4 -n 200 -g {gid} {ip}"),
    ("ib_send_lat", f"ib_send_lat -e {PERFTEST_LAT}", f"ib_send_lat -e {PERFTEST_LAT} {{ip}}"),
    ("ib_send_lat, inline", f"ib_send_lat -e -I 64 -s 64 {PERFTEST_LAT}",
     f"ib_send_lat -e -I 64 -s 64 {PERFTEST_LAT} {{ip}}"),
    ("ib_send_bw", f"ib_send_bw -e {PERFTEST_BW}", f"ib_send_bw -e {PERFTEST_BW} {{ip}}"),
    ("ib_send_bw, SRQ", f"ib_send_bw -e --use-srq -q 2 {PERFTEST_BW}",
     f"ib_send_bw -e --use-srq -q 2 {PERFTEST_BW} {{ip}}"),
    ("ib_send_lat -c UD", f"ib_send_lat -e -c UD {PERFTEST_LAT}", f"ib_send_lat -e -c UD {PERFTEST_LAT} {{ip}}"),
    ("ib_send_lat -c UC", f"ib_send_lat -e -c UC {PERFTEST_LAT}", f"ib_send_lat -e -c UC {PERFTEST_LAT} {{ip}}"),
    ("ib_write_lat", f"ib_write_lat {PERFTEST_LAT}", f"ib_write_lat {PERFTEST_LAT} {{ip}}"),
    ("ib_write_lat -c UC", f"ib_write_lat -c UC {PERFTEST_LAT}", f"ib_write_lat -c UC {PERFTEST_LAT} {{ip}}"),
    ("ib_write_bw", f"ib_write_bw {PERFTEST_BW}", f"ib_write_bw {PERFTEST_BW} {{ip}}"),
    ("ib_write_bw, 4 QPs, both ways", f"ib_write_bw -b -q 4 {PERFTEST_BW}",
     f"ib_write_bw -b -q 4 {PERFTEST_BW} {{ip}}"),
    ("ib_read_lat", f"ib_read_lat -e {PERFTEST_LAT}", f"ib_read_lat -e {PERFTEST_LAT} {{ip}}"),
    ("ib_read_bw", f"ib_read_bw -e {PERFTEST_BW}", f"ib_read_bw -e {PERFTEST_BW} {{ip}}"),
    ("ib_atomic_lat", f"ib_atomic_lat -e {PERFTEST_LAT}", f"ib_atomic_lat -e {PERFTEST_LAT} {{ip}}"),
    ("ib_atomic_bw", f"ib_atomic_bw -e {PERFTEST}", f"ib_atomic_bw -e {PERFTEST} {{ip}}"),
]
# The same with the connection manager. {me} is the client's own address.
CM_TOOLS = [
    ("rping", "rping -s -a {ip} -C 10 -V", "rping -c -a {ip} -C 10 -V"),
    ("rping, 20 kB", "rping -s -a {ip} -C 5 -S 20000 -V", "rping -c -a {ip} -C 5 -S 20000 -V"),
    ("ucmatose", "ucmatose -b {ip} -c 4 -C 5 -S 3000", "ucmatose -s {ip} -c 4 -C 5 -S 3000"),
    ("ucmatose, 30 connections", "ucmatose -b {ip} -c 30", "ucmatose -s {ip} -c 30"),
    ("udaddy", "udaddy -b {ip} -C 5", "udaddy -s {ip} -C 5"),
    ("udaddy, no messages", "udaddy -b {ip} -c 10 -C 0", "udaddy -s {ip} -c 10 -C 0"),
    ("rdma_client", "rdma_server -s {ip}", "rdma_client -s {ip}"),
    ("cmtime", "cmtime -b {ip} -c 5", "cmtime -s {ip} -c 5"),   # serves for ever
    ("mckey", "mckey -m {group} -b {ip} -C 5", "mckey -m {group} -b {me} -C 5 -s"),
    ("rstream", "rstream -b {ip} -I 20 -C 20 -S 5000 -T v", "rstream -s {ip} -I 20 -C 20 -S 5000 -T v"),
    ("rstream, 1 MB", "rstream -b {ip} -I 4 -C 4 -S 1000000 -T v",
     "rstream -s {ip} -I 4 -C 4 -S 1000000 -T v"),
    ("riostream", "riostream -b {ip} -I 20 -C 20 -S 5000 -T v",
     "riostream -s {ip} -I 20 -C 20 -S 5000 -T v"),
    ("ib_send_lat -R", "ib_send_lat -e -R -F -n 100", "ib_send_lat -e -R -F -n 100 {ip}"),
    ("ib_write_bw -R", "ib_write_bw -R -F -n 100", "ib_write_bw -R -F -n 100 {ip}"),
    ("ib_read_bw -R", "ib_read_bw -e -R -F -n 100", "ib_read_bw -e -R -F -n 100 {ip}"),
]
# The server listens, but one end refuses; both have to see it.
for _how, _what in (("connect", "rejected by the server"), ("datagram", "datagram service rejected"),
                    ("reply", "rejected by the client after the reply")):
    CM_TOOLS.append((_what, f"{{reject}} server {_how} {{ip}} 7477", f"{{reject}} client {_how} {{ip}} 7477"))
# Scenarios of iWARP alone begin so; others work over it, too.
OVER_IWARP = "iw_"
IWARP_SCENARIOS = ("rc_send rc_write rc_read rc_reads_1 rc_reads_16 rc_inline rc_many_qps rc_solicited rc_srq_limit "
                   "iw_mixed iw_sge iw_rkey iw_bounds iw_access iw_short_recv iw_no_recv iw_recv_lkey iw_lkey "
                   "iw_inv").split()
QUICK_IWARP_SCENARIOS = ("rc_send", "rc_read", "iw_mixed", "iw_rkey", "iw_no_recv")
# As responder, against itself as well.
SIW_LACKS = {"rc_solicited": "siw raises no event for a solicited message alone"}
# By iWARP: of RC only, and without GIDs.
IWARP_TOOLS = [t for t in CM_TOOLS if t[0] not in ("udaddy", "udaddy, no messages", "mckey", "datagram service rejected",
                                                   "rejected by the client after the reply")] + [
    ("five connections, backlog of two", "{reject} server backlog {ip} 7478", "{reject} client backlog {ip} 7478"),
    # Without -e, see docs/IWARP.md.
    ("ib_send_bw -R", "ib_send_bw -R -F -n 1000 -s 16384", "ib_send_bw -R -F -n 1000 -s 16384 {ip}"),
    ("ib_write_lat -R", "ib_write_lat -R -F -n 100 -C", "ib_write_lat -R -F -n 100 -C {ip}"),
    ("ib_read_lat -R", "ib_read_lat -e -R -F -n 100 -C", "ib_read_lat -e -R -F -n 100 -C {ip}"),
]
for _op, _options in (("write", "-n 5"), ("read", "-n 5"), ("send", "-n 5 -r 5")):
    IWARP_TOOLS.append((f"ib_{_op}_bw -R -a", f"ib_{_op}_bw -R -F -a {_options}",
                        f"ib_{_op}_bw -R -F -a {_options} {{ip}}"))
for _op in ("write", "read", "send"):
    IWARP_TOOLS.append((f"ib_{_op}_bw -R -q 8", f"ib_{_op}_bw -R -F -q 8 -n 1000 -s 4096",
                        f"ib_{_op}_bw -R -F -q 8 -n 1000 -s 4096 {{ip}}"))
# As REJECTIONS. The kernel's siw connects by TCP before rdma_connect() returns.
# (Then rping waits for ever.)
IWARP_REJECTIONS = [
    ("rdma_client, no listener", "rdma_client -s {ip} -p 9998", True, r"rdma_connect: Connection refused"),
    ("no listener, reason of the rejection", "{reject} client nobody {ip} 9997", False, r"^$"),
]
QUICK_IWARP = ("rping", "ucmatose", "rejected by the server")
CRC_TOOLS = ("rping", "rping, 20 kB", "ucmatose", "rdma_client", "rstream", "ib_send_lat -R", "ib_send_bw -R",
             "ib_write_lat -R", "ib_write_bw -R", "ib_read_lat -R", "ib_read_bw -R", "ib_write_bw -R -q 8")
# (ib_send_bw -e may wait for credits for ever, too.)
IWARP_LOSES = ("rping", "rping, 20 kB", "ucmatose", "rdma_client", "rstream, 1 MB", "ib_write_bw -R", "ib_read_bw -R",
               "ib_send_lat -R", "ib_write_bw -R -q 8")
# Its server is the first to end.
SIW_RESETS = {"rstream, 1 MB": "siw may reset the stream when it closes, so what it sent last is "
              "lost; against itself as well"}
# over IPv6, and with CRC
IWARP_LOSES_MORE = ("rping, 20 kB", "ucmatose", "rstream, 1 MB")
# What the client or the kernel lacks, against itself as well.
UNSUPPORTED = {
    ("cm", "mckey", 6): "the kernel's CM joins no IPv6 groups on RoCE (ENOTSUPP)",
    **{("cm", f"ib_{op} -R", 6): "perftest 4.5 resolves IPv4 addresses only"
       for op in ("send_lat", "write_bw", "read_bw")},
    **{("iwarp", name, 6): "perftest 4.5 resolves IPv4 addresses only"
       for name, *_ in IWARP_TOOLS if name.startswith("ib_")},
}
# By who runs the client; 3 is the newer kernel.
CLIENT_LACKS = {("mckey", 3): "it destroys its address handle right after it has posted its sends; this kernel's rxe sends from a work "
                "queue, and drops what has lost its handle: none to four of five datagrams leave"}
# What also runs on a disturbed network.
# (ibv_srq_pingpong ends while messages of its other QPs are on their way.)
DISTURBED_TOOLS = ("ibv_rc_pingpong", "ibv_rc_pingpong, 100 kB", "ib_send_bw", "ib_write_bw", "ib_read_bw",
                   "ib_atomic_bw", "rping", "ucmatose", "ucmatose, 30 connections", "udaddy",
                   "udaddy, no messages", "rdma_client", "cmtime", "rejected by the server",
                   "datagram service rejected", "rejected by the client after the reply")
# With fewer messages: rxe may wait for its timer with each that it sends.
FEWER = {"ibv_rc_pingpong": ("-e", "-e -n 200"), "ibv_rc_pingpong, 100 kB": ("-n 100", "-n 10")}
LOSES = next(iter(NETEM))
UNSUPPORTED.update({(LOSES, "udaddy", ip): "it waits indefinitely for a datagram that is lost; the row without "
                    "messages shows that its service is resolved" for ip in (4, 6)})
# Nobody listens: whether the client fails, and what it has to print. The reasons
# are numbers of 12.6.7.2 (8: invalid service ID) and 12.11.2 (1: service ID not
# supported); reject checks them by itself.
REJECTIONS = [
    ("rping, no listener", "rping -c -a {ip} -p 9999 -C 1 -v", True, r"RDMA_CM_EVENT_REJECTED, error 8\b"),
    ("udaddy, no listener", "udaddy -s {ip} -C 1", True, r"RDMA_CM_EVENT_UNREACHABLE, error:? 1\b"),
    ("rdma_client, no listener", "rdma_client -s {ip} -p 9998", True, r"rdma_connect: Connection refused"),
    ("no listener, reason of the rejection", "{reject} client nobody {ip} 9997", False, r"^$"),
    ("no listener, datagram service", "{reject} client nobody-datagram {ip} 9997", False, r"^$"),
]


def wants_cm(server):
    """Whether a tool finds its peer by the connection manager."""
    return "{gid}" not in server
