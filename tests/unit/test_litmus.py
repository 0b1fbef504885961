"""Orders that processes rely on in shared memory, each as a small litmus test.

A processor that is multi-copy atomic but weakly ordered (Armv8) may carry out
the loads and stores of a thread in any order that keeps: those of one place;
what is behind an acquiring load, and before a releasing store; a releasing store
before an acquiring load; and fences. All such orders of all threads are tried,
in all interleavings. Each promise has to hold as the code has it, and to fail
without its fence or its release: otherwise it says nothing.

The files named are where the promise is kept. What is tried is the pattern, not
the code.
"""
import itertools

import pytest


def W(place, value, how=""):
    return ("W", place, value, how)


def R(place, name, how=""):
    return ("R", place, name, how)


FULL = ("F", None, None, "full")  # atomic_thread_fence(memory_order_seq_cst)
LOADS = ("F", None, None, "loads")  # memory_order_acquire
STORES = ("F", None, None, "full")  # memory_order_release is dmb ish, too


def kept(a, b):
    """Whether a, which is before b in its thread, is carried out before it."""
    if "F" in (a[0], b[0]):
        return a[0] == "R" or "loads" not in (a[3], b[3]) or a[0] == "F"
    return a[1] == b[1] or (a[0] == "R" and a[3] == "acq") or (b[0] == "W" and b[3] == "rel") \
        or (a[0] == "W" and a[3] == "rel" and b[0] == "R" and b[3] == "acq")


def orders(thread):
    for order in itertools.permutations(range(len(thread))):
        at = {op: i for i, op in enumerate(order)}
        if all(at[i] < at[k] for i in range(len(thread)) for k in range(i + 1, len(thread))
               if kept(thread[i], thread[k])):
            yield [thread[i] for i in order if thread[i][0] != "F"]


def interleaved(threads):
    threads = [t for t in threads if t]
    if not threads:
        yield []
    for i, t in enumerate(threads):
        for rest in interleaved(threads[:i] + [t[1:]] + threads[i + 1:]):
            yield [t[0]] + rest


def outcomes(threads, memory):
    seen = set()
    for each in itertools.product(*[list(orders(t)) for t in threads]):
        for run in interleaved(list(each)):
            now, got = dict(memory), {}
            for kind, place, what, _ in run:
                if kind == "W":
                    now[place] = what
                else:
                    got[what] = now.get(place, 0)
            seen.add(tuple(sorted(got.items())))
    return [dict(s) for s in seen]


def happens(threads, bad, memory):
    return any(bad(r) for r in outcomes(threads, memory))


def stale(r):
    return r["flag"] == 1 and r["data"] == 0


def neither(r):
    return r["a"] == 0 and r["b"] == 0


POLL = [R("tail", "flag", "acq"), R("body", "data")]
SEQ_READ = [R("seq", "s", "acq"), R("w0", "a", "acq"), R("w1", "b", "acq"), R("seq", "e")]


def torn(r):
    return r["s"] == r["e"] and r["s"] in (0, 2) and r["a"] != r["b"]


# name: (as it is, without what it needs, what must not happen, memory before)
CASES = {
    # qp/direct.c direct_copy(), verbs/memory.c shca_odp_store(), base/store_tail.h store_tail_last();
    # qp/memory.c fill_run() and iwarp/segment.c by store_tail_last() of the last bytes.
    "tail": ([[W("body", 1), FULL, W("tail", 1)], POLL],
             [[W("body", 1), W("tail", 1)], POLL], stale, {}),
    # Two writes, data and then a flag: segment/copy_guard.c exit and enter.
    "visits in a row": ([[W("body", 1), W("visit", 2, "rel"), W("visit", 3, "rel"), FULL, W("tail", 1)], POLL],
                        [[W("body", 1), W("visit", 2), W("visit", 3), W("tail", 1)], POLL], stale, {}),
    # link/ring.h: a record, then the word that publishes it.
    "publish": ([[W("body", 1), W("tail", 1, "rel")], POLL],
                [[W("body", 1), W("tail", 1)], POLL], stale, {}),
    # link/ring.h: a record is read, then its room is given back and used again.
    "room": ([[R("body", "data"), W("note", 1, "rel")], [R("note", "flag", "acq"), W("body", 9)]],
             [[R("body", "data"), W("note", 1)], [R("note", "flag", "acq"), W("body", 9)]],
             lambda r: r["flag"] == 1 and r["data"] == 9, {}),
    # link/shm_rx.c: ACK notes are handed over before the records behind them.
    "ACK note before record": ([[W("body", 1, "rel"), W("tail", 1, "rel")], POLL],
                              [[W("body", 1), W("tail", 1)], POLL], stale, {}),
    # base/lock.h lock_drop_fence() and segment/segment_wake.c: nobody sleeps over a record.
    "sleep and wake": ([[W("word", 1, "rel"), FULL, R("asleep", "a")], [W("asleep", 1, "rel"), FULL, R("word", "b")]],
                       [[W("word", 1, "rel"), R("asleep", "a")], [W("asleep", 1, "rel"), FULL, R("word", "b")]],
                       neither, {}),
    # link/shm_tx.c put_or_starve(), engine/send.c starve().
    "room and who waits for it": ([[W("starved", 1, "rel"), FULL, R("taken", "a", "acq")],
                                   [W("taken", 1, "rel"), FULL, R("starved", "b")]],
                                  [[W("starved", 1, "rel"), R("taken", "a")],
                                   [W("taken", 1, "rel"), FULL, R("starved", "b")]], neither, {}),
    # engine/poller.c rest() and poller_wake(): seq_cst, on either side.
    "rest": ([[W("rests", 1, "rel"), R("asleep", "a", "acq")], [W("asleep", 0, "rel"), R("rests", "b", "acq")]],
             [[W("rests", 1, "rel"), R("asleep", "a")], [W("asleep", 0, "rel"), R("rests", "b", "acq")]],
             lambda r: r["a"] == 1 and r["b"] == 0, {"asleep": 1}),
    # segment/copy_guard.c and qp/keys.c: a key is hidden, or who uses it is waited for.
    "visit and key": ([[W("visit", 1, "rel"), FULL, R("key", "a", "acq")], [W("key", 0, "rel"), FULL, R("visit", "b", "acq")]],
                      [[W("visit", 1, "rel"), FULL, R("key", "a", "acq")], [W("key", 0, "rel"), R("visit", "b")]],
                      lambda r: r["a"] == 5 and r["b"] == 0, {"key": 5}),
    # segment/copy_guard.c: memory is not used again before the copy has ended.
    "end of a visit": ([[R("body", "data"), W("visit", 2, "rel")], [R("visit", "flag", "acq"), W("body", 9)]],
                       [[R("body", "data"), W("visit", 2)], [R("visit", "flag", "acq"), W("body", 9)]],
                       lambda r: r["flag"] == 2 and r["data"] == 9, {}),
    # link/shm_pull.c: payload that its program has taken back is not taken for good.
    "payload taken back": ([[W("life", 1, "rel"), FULL, W("buf", 9)], [R("buf", "a"), LOADS, R("life", "b")]],
                           [[W("life", 1, "rel"), W("buf", 9)], [R("buf", "a"), LOADS, R("life", "b")]],
                           lambda r: r["a"] == 9 and r["b"] == 0, {}),
    # net/netlocal.c: words under a sequence number.
    "seqlock": ([[W("seq", 1), W("w0", 1, "rel"), W("w1", 1, "rel"), W("seq", 2, "rel")], SEQ_READ],
                [[W("seq", 1), W("w0", 1), W("w1", 1), W("seq", 2, "rel")], SEQ_READ], torn, {}),
    # trace/trace.c put() and read.c: who sees a part of a record finds the one before counted.
    "trace ring": ([[W("rec0", 1), W("written", 1, "rel"), STORES, W("rec1", 1)],
                    [R("rec1", "flag"), LOADS, R("written", "data")]],
                   [[W("rec0", 1), W("written", 1, "rel"), W("rec1", 1)],
                    [R("rec1", "flag"), LOADS, R("written", "data")]], stale, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_order(name):
    code, without, bad, memory = CASES[name]
    assert not happens(code, bad, memory)
    assert happens(without, bad, memory)


def test_the_model_knows_what_is_allowed():
    """Store buffering and message passing, as the Arm ARM has them."""
    assert happens([[W("x", 1), R("y", "a")], [W("y", 1), R("x", "b")]], neither, {})
    assert not happens([[W("x", 1), FULL, R("y", "a")], [W("y", 1), FULL, R("x", "b")]], neither, {})
    assert happens([[W("body", 1), W("tail", 1, "rel")], [R("tail", "flag"), R("body", "data")]], stale, {})
    assert not happens([[W("body", 1), W("body", 2)], [R("body", "a"), R("body", "b")]],
                       lambda r: r["a"] == 2 and r["b"] == 1, {})
