#!/usr/bin/env python3
"""sans_io.py BASE ARCHIVE... - what the layers that do no I/O take from elsewhere.

wire, qp, roce, iwarp, cm, move and fabric are told the time and handed their packets; they neither
wait nor lock, nor ask for a random number or for memory but the heap's. So of all undefined
names in their objects only the few below may come from outside of them.
"""
import re
import subprocess
import sys

ALLOWED = """
    aligned_alloc calloc free malloc realloc
    bcmp memchr memcmp memcpy memmove memset
    strchr strcmp strlen strncmp strnlen snprintf
    __assert_fail __stack_chk_fail __memcpy_chk __memset_chk __snprintf_chk
    _GLOBAL_OFFSET_TABLE_ __cpu_model __cpu_indicator_init
    crc32_gzip_refl crc32_iscsi
""".split()
SANITIZERS = re.compile(r"__(asan|ubsan|tsan|lsan|sanitizer|sancov|gcov|llvm)_"
                        r"|__(start|stop)___sancov|_ITM_")


def objects(archives):
    """Of each object in them: the names that it defines, and those that it takes."""
    out = subprocess.run(["nm", "-P", *archives], check=True, capture_output=True, text=True).stdout
    found = []
    for line in out.splitlines():
        if line.endswith(":"):
            found.append((set(), set()))
        elif line:
            name, kind = line.split()[:2]
            found[-1][kind in "Uwv"].add(name)
    return found


def main(base, *archives):
    layers, below = objects(archives), objects([base])
    # As the linker does: of base only what they take, by way of each other, too.
    while more := [o for o in below if o[0] & set().union(*(taken for _, taken in layers))]:
        below = [o for o in below if o not in more]
        layers += more
    taken = set().union(*(t for _, t in layers)) - set().union(*(d for d, _ in layers))
    wrong = sorted(name for name in taken
                   if name not in ALLOWED and not SANITIZERS.match(name))
    for name in wrong:
        print(f"{name}: not for a layer that does no I/O")
    if not taken & set(ALLOWED):
        sys.exit("nm shows no name at all: are these the archives?")
    sys.exit(bool(wrong))


main(*sys.argv[1:])
