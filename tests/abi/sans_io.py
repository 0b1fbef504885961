#!/usr/bin/env python3
"""sans_io.py ARCHIVE... - what the layers that do no I/O take from elsewhere.

wire, qp, roce, iwarp and cm are told the time and handed their packets; they neither
wait nor lock, nor ask for a random number or for memory but the heap's. So of all undefined
names in their objects only the few below may come from outside of them.
"""
import re
import subprocess
import sys

ALLOWED = """
    calloc free malloc realloc
    bcmp memchr memcmp memcpy memmove memset
    strchr strcmp strlen strncmp snprintf
    __assert_fail __stack_chk_fail __memcpy_chk __memset_chk __snprintf_chk
    _GLOBAL_OFFSET_TABLE_ __cpu_model __cpu_indicator_init
    crc32_gzip_refl crc32_iscsi
""".split()
SANITIZERS = re.compile(r"__(asan|ubsan|tsan|lsan|sanitizer|sancov|gcov|llvm)_"
                        r"|__(start|stop)___sancov|_ITM_")


def names(option, archives):
    out = subprocess.run(["nm", "-P", option, *archives], check=True,
                         capture_output=True, text=True).stdout
    # "name type ..."; lines that end in a colon say which object it is.
    return {line.split()[0] for line in out.splitlines()
            if line and not line.endswith(":")}


def main(archives):
    taken = names("-u", archives) - names("--defined-only", archives)
    wrong = sorted(name for name in taken
                   if name not in ALLOWED and not SANITIZERS.match(name))
    for name in wrong:
        print(f"{name}: not for a layer that does no I/O")
    if not taken & set(ALLOWED):
        sys.exit("nm shows no name at all: are these the archives?")
    sys.exit(bool(wrong))


main(sys.argv[1:])
