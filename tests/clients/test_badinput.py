"""The table of wrong uses, see src/badinput.c: one test per row."""
import os
import re
import subprocess

import pytest

import rig


def rows():
    if not os.access(rig.client("badinput"), os.X_OK):
        return []
    out = subprocess.run([rig.client("badinput"), "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return out.stdout.splitlines()


LOCAL = [r for r in rows() if r.startswith("local: ")]
WIRE = [r for r in rows() if r.startswith("wire: ")]


def verdicts(text):
    """What an end said of each row."""
    return {m[2]: m[0] for m in re.finditer(r"^(not )?ok ([a-z]+: [^:\n]+)(:.*)?$", text, re.M)} | \
        {m[2]: m[0] for m in re.finditer(r"^(not )ok ([a-z]+: [^:\n]+)(:.*)?$", text, re.M)}


def check(row, ends):
    for end, proc in ends.items():
        said = verdicts(proc.output()).get(row)
        assert said is not None, f"{end} did not get to it:\n{proc.output()[-1500:]}"
        assert not said.startswith("not"), f"{end}: {said}"


def test_table_is_there():
    assert len(LOCAL) > 60 and len(WIRE) > 40


@pytest.fixture(scope="module")
def local_run(home):
    p = rig.Proc(rig.Side(home), [rig.client("badinput"), "--local"])
    p.wait(120)
    return p


# By UDP a bad packet is the same, private port or not.
@pytest.fixture(scope="module", params=[p for p in rig.PLACES if p != "udp"])
def wire_run(request, placements):
    return placements(request.param).tool(rig.client("badinput"), status=(None, None), limit=120)


@pytest.mark.parametrize("row", LOCAL)
def test_local(local_run, row):
    check(row, {"client": local_run})


@pytest.mark.parametrize("row", WIRE)
def test_wire(wire_run, row):
    check(row, {"client": wire_run.client, "server": wire_run.server})


def test_local_ends(local_run):
    """After the last row, too, nothing is wrong."""
    local_run.done()


def test_wire_ends(wire_run):
    for end in (wire_run.client, wire_run.server):
        end.done()


def explained(proc):
    """Row: what --explain said of it."""
    rows, said = {}, []
    for line in proc.output().splitlines():
        if line.startswith("softhca: "):
            said.append(line)
        elif m := re.match(r"(?:not )?ok (wire: [^:]+)", line):
            rows[m[1]] = "\n".join(said)
            said = []
    return rows


REGION = r"its region \[0x\w+, 0x\w+\)"
EXPLAINED = {  # row: client's words, server's words
    "write, wrong rkey": (r"peer \S+ QP 0x\w+.*refused access.*rkey 0x\w{8}",
                          r"write of 64 bytes at 0x\w+ with rkey 0x\w{8} refused: no region has this rkey"),
    "write, rkey 0": (r"refused access", r"refused: 0 is no rkey"),
    "write, rkey in the other byte order": (r"refused access",
                                            r"byte-swapped it is 0x\w{8}, which exists: .*htonl\(\).*ntohl\(\)"),
    "write past the end": (r"refused access",
                           rf"\[0x\w+, 0x\w+\) is not inside {REGION}: it ends 1 byte beyond it"),
    "write before the start": (r"refused access", rf"is not inside {REGION}: it begins 1 byte before it"),
    "read past the end": (r"refused access", r"read of 64 bytes at 0x\w+ .*refused: .*ends 63 bytes beyond it"),
    "atomic past the end": (r"refused access", r"atomic of 8 bytes at 0x\w+ .*refused: .*ends 8 bytes beyond it"),
    "write, MR without remote write": (r"refused access", rf"{REGION} lacks IBV_ACCESS_REMOTE_WRITE: .*ibv_reg_mr"),
    "read, MR without remote read": (r"refused access", r"lacks IBV_ACCESS_REMOTE_READ"),
    "atomic, MR without remote atomic": (r"refused access", r"lacks IBV_ACCESS_REMOTE_ATOMIC"),
    "write, destroyed MR": (r"refused access", r"the region with this rkey has been deregistered"),
    "write, MR of another PD": (r"refused access", rf"{REGION} is of another PD than the QP"),
    "write, QP without remote write": (r"NAK 0x61\).*qp_access_flags", r"qp_access_flags lack IBV_ACCESS_REMOTE_WRITE: .*INIT"),
    "send longer than the receive": (r"longer than its receive buffer|room for 64: post larger", r"room for 64"),
    "send into a receive with a wrong lkey": (r"NAK 0x63", r"SGE 0 of receive 0x0 refused: .*no region has this lkey"),
    "send without a receive": (r"RNR retry exceeded.*\d ms \(rnr_retry=1\).*post receives", None),
    "send, wrong lkey": (r"lkey 0x\w{8} for \[0x\w+, \+64\): no region has this lkey", None),
    "read into an MR without local write": (rf"{REGION} lacks IBV_ACCESS_LOCAL_WRITE", None),
    "send past the end of the local MR": (rf"is not inside {REGION}: it ends 1 byte beyond it", None),
}

# The same where --check keeps a region's two keys apart.
TWO_KEYS = {
    "write, lkey for the rkey": (r"refused access", r"that is the lkey of a region, and here its rkey is needed, 0x\w{8}"),
    "send, rkey for the lkey": (r"that is the rkey of a region, and here its lkey is needed, 0x\w{8}", None),
}


NOBODY = r"no answer for \d+ ms \(timeout=12, retry_cnt=1\): "
FAR = NOBODY + r"nothing has ever come from it: its QP is not in RTR, .*softhca doctor --peer"
ALIVE = NOBODY + r"its process \d+ lives: its QP is not \(yet\) in RTR"
UNANSWERED = {  # row: what the client says in each place
    "unknown QPN": {"local": NOBODY + "no process of this user and host has that QP", "netns": FAR,
                    "wire": NOBODY + "no process of this user and host has that QP"},
    "wrong PSN": {"local": r"rq_psn 0x000010, and this one sq_psn 0x001010|expects PSN 0x000010, and sq_psn here is 0x001010",
                  "wire": NOBODY + r"the peer answers, but expects PSN 0x000010, and sq_psn here is 0x001010",
                  "netns": NOBODY + r"the peer answers, but expects PSN 0x000010, and sq_psn here is 0x001010"},
    "the other QP is in INIT": {"local": NOBODY + "the QP there is in state INIT: it must be in RTR", "wire": ALIVE,
                                "netns": FAR},
    "the other QP is destroyed": {"local": NOBODY + "its process has no such QP, or it is in state RESET: it was destroyed", "wire": ALIVE,
                                  "netns": FAR},
}
# What the responder has said is what the client says, where both are of one host.
SEEN = ("write, wrong rkey", "write, rkey 0", "write, rkey in the other byte order",
        "write past the end", "write before the start", "read past the end", "atomic past the end",
        "write, MR without remote write", "read, MR without remote read", "atomic, MR without remote atomic",
        "write, destroyed MR", "write, MR of another PD", "write, QP without remote write",
        "send longer than the receive", "send into a receive with a wrong lkey")


def explains(client, server, rows):
    for row, (mine, theirs) in rows.items():
        row = f"wire: {row}"
        assert re.search(mine, client[row]), f"{row}: client said {client[row]!r}"
        assert re.search(r"^softhca: QP 0x\w+", client[row])
        if theirs:
            assert re.search(theirs, server[row]), f"{row}: server said {server[row]!r}"


def test_two_keys(placements):
    """--check names an lkey that was sent as rkey; without it the two are one, as with mlx5."""
    run = placements("local").tool(rig.client("badinput"), limit=120, options=["--explain", "--check"], status=(None, None))
    explains(explained(run.client), explained(run.server), TWO_KEYS)


@pytest.mark.parametrize("place", ["local", "wire", "netns"])
def test_explain(placements, place):
    """--explain: a line for every completion that failed, with names and numbers."""
    run = placements(place).tool(rig.client("badinput"), limit=120, options=["--explain"])
    client, server = explained(run.client), explained(run.server)
    explains(client, server, EXPLAINED)
    for row, words in UNANSWERED.items():
        assert re.search(words[place], client[f"wire: {row}"]), f"{row}: client said {client[f'wire: {row}']!r}"
    for row in SEEN if place != "netns" else ():
        theirs = EXPLAINED[row][1].split("refused: ")[-1]
        assert re.search(theirs, client[f"wire: {row}"]), f"{row}: client said {client[f'wire: {row}']!r}"
    # every RC row that fails says something
    silent = [r for r in WIRE if not r.startswith(("wire: UC", "wire: UD")) and not client[r] and not server[r]
              and r not in ("wire: write of nothing, wrong rkey", *(f"wire: {k}" for k in TWO_KEYS))]
    assert not silent, silent


def test_explain_places(placements):
    """--explain=full: the program's own lines."""
    run = placements("local").tool(rig.client("badinput"), limit=120, options=["--explain=full"])
    rows = explained(run.client)
    for row in ("write, wrong rkey", "unknown QPN", "send, wrong lkey"):
        assert re.search(r"it was posted at\n.*#0 \S+badinput(\+0x\w+|\.c:\d+) \(post_one\)\n(.*\n)*"
                         r".*the queue pair was created at\n.*#0 \S+badinput(\+0x\w+|\.c:\d+) \(run_wire\)", rows[f"wire: {row}"]), row


CALLS = {  # local row: the public function, the errno, and what is said of it
    "CQ of no entries": r"ibv_create_cq: EINVAL: cqe is 0, not in 1\.\.\d+",
    "MR remote write without local write": r"ibv_reg_mr: EINVAL: .*IBV_ACCESS_REMOTE_WRITE without IBV_ACCESS_LOCAL_WRITE",
    "MR over unmapped memory": r"ibv_reg_mr: EFAULT: \[0x\w+, \+8192\) is not all mapped",
    "MR writable over read-only memory": r"ibv_reg_mr: EFAULT: .*mapped read-only",
    "dealloc_pd with an MR": r"ibv_dealloc_pd: EBUSY: .*the MR with lkey 0x\w{8}",
    "destroy_cq with a QP": r"ibv_destroy_cq: EBUSY: .*QP 0x\w{6}",
    "destroy_comp_channel with a CQ": r"ibv_destroy_comp_channel: EBUSY: .*a CQ",
    "QP with too many receive SGEs": r"ibv_create_qp: EINVAL: cap\.max_recv_sge is \d+, .*at most \d+",
    "SRQ limit above its size": r"ibv_modify_srq: EINVAL: max_wr 4 with srq_limit 5",
    "INIT with an attribute not allowed": r"RESET to INIT: not allowed in attr_mask here: IBV_QP_DEST_QPN;",
    "INIT with port 2": r"ibv_modify_qp: EINVAL: QP 0x\w{6}: attr\.port_num is 2",
    "INIT with a P_Key index out of range": r"attr\.pkey_index is 999",
    "RESET to RTR": r"QP 0x\w{6} \(RC\), RESET to RTR: no such transition; from RESET a QP goes to INIT, RESET or ERR",
    "RTS to INIT": r"from RTS a QP goes to RTS, SQD, RESET or ERR",
    "RTS from a state it is not in": r"attr\.cur_qp_state is SQD",
    "RTR without PSN": r"INIT to RTR: missing in attr_mask: IBV_QP_RQ_PSN;.*All that is needed: IBV_QP_STATE \| IBV_QP_AV",
    "RTR of UC with attributes of RC": r"\(UC\).*not allowed.*: IBV_QP_MIN_RNR_TIMER \| IBV_QP_MAX_DEST_RD_ATOMIC;",
    "RTR without GRH": r"ibv_modify_qp: EINVAL: QP 0x\w{6}: ah_attr\.is_global is 0, .*set is_global = 1",
    "RTR with a GID index out of range": r"grh\.sgid_index 255 is beyond the GID table",
    "RTR with an empty entry of the GID table": r"grh\.sgid_index \d+ is (an empty entry of|beyond) the GID table",
    "RTR with port 2 in the address": r"ah_attr\.port_num is 2",
    "RTR to a GID of zeros": r"grh\.dgid is all zeros",
    "RTR from IPv4 to IPv6": r"grh\.sgid_index \d+ is [\d.:a-f]+, grh\.dgid is [\d.:a-f]+: one is IPv4",
    "RTR to a QPN of 25 bits": r"attr\.dest_qp_num is 285212672, not in 0\.\.16777215",
    "RTR with path MTU 6": r"attr\.path_mtu is 6: it is an enum ibv_mtu",
    "RTR with RNR timer 32": r"attr\.min_rnr_timer is 32, not in 0\.\.31",
    "RTS with retry count 8": r"attr\.retry_cnt is 8, not in 0\.\.7",
    "RTS with too many outstanding reads": r"attr\.max_rd_atomic is \d+, not in 0\.\.128",
    "AH without GRH": r"ibv_create_ah: EINVAL: ah_attr\.is_global is 0",
    "post_send in INIT": r"ibv_post_send: EINVAL: QP 0x\w{6}: the QP is in state INIT; sending needs RTS",
    "post_send to a full queue": r"ibv_post_send: ENOMEM: QP 0x\w{6}: the send queue is full: none of its 4 work requests is signalled",
    "post_recv to a full queue": r"ibv_post_recv: ENOMEM: QP 0x\w{6}: the receive queue is full: 4 receives",
    "post_send with too many SGEs": r"num_sge is \d+; the QP was created with cap\.max_send_sge 2",
    "post_send with too much inline data": r"inline data of 4096 bytes.*max_inline_data \d+",
    "unknown opcode": r"opcode 99 is invalid",
    "post_recv on a QP with an SRQ": r"created with an SRQ.*ibv_post_srq_recv",
    "attach_mcast of an RC QP": r"ibv_attach_mcast: EINVAL: QP 0x\w{6} is of type RC",
}
# what the header itself refuses, what is no failure, and calls that the device does not have at all
SILENT = (r"nothing there|is accepted|^bind_mw (of an MW of type 2|to an MR of another PD|to no MR)$|wr_abort|rates|"
          r"start_poll|query_rt_values|query_device_ex|query_gid_table|modify_qp_rate|create_(wq|rwq|flow|counters)|post_srq_ops")


def local_lines(home, *options):
    """Row: what was said of it."""
    p = rig.Proc(rig.Side(home), [rig.client("badinput"), "--local"], options)
    p.wait(120)
    rows, said = {}, []
    for line in p.output().splitlines():
        if m := re.match(r"softhca: (\w+: E[A-Z]+: .*)", line):
            said.append(m[1])
        elif m := re.match(r"ok local: (.+)", line):
            rows[m[1]], said = said, []
    return rows


def test_explain_calls(home):
    """--explain: a line for every call that fails, which says why."""
    rows = local_lines(home, "--explain")
    for row, words in CALLS.items():
        assert len(rows[row]) == 1 and re.search(words, rows[row][0]), f"{row}: {rows[row]}"
    assert not [r for r, said in rows.items() if not said and not re.search(SILENT, r)]
    # a reason, not the errno once more
    assert not [s for said in rows.values() for s in said if s.endswith((": Invalid argument", ": No such file or directory"))]


def test_no_word_without_explain(home):
    assert not any(local_lines(home).values())
