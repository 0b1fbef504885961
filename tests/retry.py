"""Which failures of a case may be tried again.

Only what a busy machine explains: the case ended by a time limit, or a queue
pair's peer did not answer in time (IBV_WC_RETRY_EXC_ERR), while others had a
good part of the processors. A signal, a sanitizer's report, a failed assertion
of a program, wrong data and an unexpected status are never explained by load,
even if a time limit ended the case in the end.
"""
import re

from load import BUSY

TRIES = 12      # failures that are tried again at most
ALLOWED = 3     # of them may pass; more fail the run

NEVER = [
    ("a sanitizer's report", r"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|\bruntime error: "),
    # A shell reports a signal of its child as 128 and more. What the tests
    # have killed themselves is shown as "ended by the test".
    ("a signal", r"\bexit status \(?(\S+, )?(-\d+|13[1-9])\b"),
    ("a signal", r"Segmentation fault|core dumped|Caught signal|^Aborted|stack smashing|\bSIG(SEGV|ABRT|BUS|ILL)\b"),
    ("a complaint of the C library", r"^((m|c|re)alloc|free|malloc_consolidate|munmap_chunk)\(\): |"
     r"\bdouble free|\*\*\*: terminated"),
    ("a failed assertion", r"[Aa]ssertion .*failed|^(E +)?AssertionError\b|^E +assert "),
    ("a failed case of a program", r"^not ok\b(?!.*# *(SKIP|skip))|^\[ +FAILED +\]"),
    ("a failure before the limit", r"^During handling of the above exception"),
    ("wrong data", r"\bwrong [1-9]|\bverify: bad|\b(data )?(mismatch|corrupt)|"
     r"\bdata verification failed|^(?!.*\bassert ).*\binvalid data\b"),
]
# How the tests, Python and tests/peer name a time limit that has ended a case.
TIME = r"^(\w+\.)*(TimedOut|TimeoutExpired): |^(failed on (setup|teardown) with \")?(\w+\.)*TimedOut: " \
    r"|^no end within \d+ s\b"
# How verbs, perftest, UCX, libfabric and tests/peer name the completion.
RETRY = r"[Tt]ransport retry (counter|count) exceeded|\bRETRY_EXC_ERR\b|\b[Ff]ailed status 12\b|\bstatus 12\b"
STATUS = r"^((\w+\.)*Failed: exit status |completes as |client ends with )"


def why(failure, others):
    """Why a case may be tried again, "" if it may not.

    failure: what is known about it, beginning with the error itself.
    others: the share of the processors that others had meanwhile.
    """
    if others < BUSY or any(re.search(pattern, failure, re.M) for _, pattern in NEVER):
        return ""
    first = failure.partition("\n")[0]
    if re.search(TIME, first):
        return f"a time limit, while others had {others:.0%} of the processors"
    if re.search(STATUS, first) and re.search(RETRY, failure):
        return f"a peer that did not answer, while others had {others:.0%} of the processors"
    return ""
