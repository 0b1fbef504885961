#!/usr/bin/env python3
"""layers.py BUILD CORE... - which folder of src uses which, by the object files of a build
and the #include lines of the sources.

The order is the block "layers" of docs/ARCHITECTURE.md: a line is a layer, the top
one first, and its folders stand before the "│". A folder uses only folders on lines
below its own. Every folder of src is named once. Those below the line that begins
with "─" are the core, which abi.core links.

An object file has an edge to another folder where a name that it lacks is defined
there. Names that the C library has, too, are no edge: preloads define them.

layers.py --edges BUILD CORE... prints the edges, each with a name.
"""
import collections
import ctypes
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def order(text):
    """{folder: number of its line} from the page, and the line of the core."""
    block = re.search(r"^```layers\n(.*?)^```", text, re.M | re.S)
    if not block:
        sys.exit("docs/ARCHITECTURE.md has no block of layers")
    rank, core = {}, 0
    for number, line in enumerate(block[1].splitlines()):
        if line.startswith("─"):
            core = number
            continue
        for folder in line.partition("│")[0].split():
            if rank.setdefault(folder, number) != number:
                sys.exit(f"docs/ARCHITECTURE.md: {folder} is in two layers")
    return rank, core


def objects(build):
    """{folder: its object files}; others may lie there, of sources that have gone."""
    found = collections.defaultdict(list)
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        for step in json.load(f):
            parts = os.path.relpath(step["file"], os.path.join(ROOT, "src")).split(os.sep)
            if len(parts) == 2 and parts[0] != "..":
                found[parts[0]].append(os.path.join(step["directory"], re.search(r" -o (\S+)", step["command"])[1]))
    return found


def names(option, files):
    out = subprocess.run(["nm", "-P", option, *files], check=True, text=True, capture_output=True).stdout
    # "name type ..."; a line that ends in a colon says which object it is.
    return {line.split()[0] for line in out.splitlines() if line and not line.endswith(":")}


def calls(found):
    """{(user, used): a name} from objects."""
    libc = ctypes.CDLL(None)
    defined = collections.defaultdict(set)
    for folder, files in found.items():
        for name in names("--defined-only", files):
            defined[name].add(folder)
    result = {}
    for folder, files in found.items():
        for name in sorted(names("-u", files)):
            for owner in defined[name] if folder not in defined[name] and not hasattr(libc, name) else ():
                result.setdefault((folder, owner), name)
    return result


def includes():
    """{(user, used): FILE includes HEADER} from sources."""
    result = {}
    for path in sorted(glob.glob(f"{ROOT}/src/*/*.[ch]")):
        folder = path.split(os.sep)[-2]
        with open(path, encoding="utf-8") as f:
            for header in re.findall(r'^\s*#\s*include "(\w+)/', f.read(), re.M):
                if header != folder and os.path.isdir(f"{ROOT}/src/{header}"):
                    result.setdefault((folder, header), f"{os.path.basename(path)} includes its headers")
    return result


def main(argv):
    with open(os.path.join(ROOT, "docs", "ARCHITECTURE.md"), encoding="utf-8") as f:
        rank, line = order(f.read())
    edges_wanted = argv[0] == "--edges"
    build, *core = argv[edges_wanted:]
    found = objects(build)
    folders = {os.path.basename(p) for p in glob.glob(f"{ROOT}/src/*") if glob.glob(f"{p}/*.[ch]")}
    wrong = [f"{n}: in the order of docs/ARCHITECTURE.md or in src, not in both" for n in sorted(folders ^ set(rank))]
    for n in sorted(set(core) ^ {n for n in rank if rank[n] > line}):
        wrong.append(f"{n}: in the core of docs/ARCHITECTURE.md or in SOFTHCA_CORE, not in both")
    uses = calls(found)
    if missing := sorted(folders - set(found)):
        wrong.append(f"no object files of {missing}: is this a whole build?")
    if len(uses) < 20:
        wrong.append(f"nm shows only {len(uses)} edges")
    for edges in uses, includes():
        for (a, b), name in sorted(edges.items()):
            if edges_wanted:
                print(f"{a} -> {b}: {name}")
            if {a, b} <= set(rank) and rank[a] >= rank[b]:
                wrong.append(f"{a} is not above {b}, but uses it: {name}")
    print("\n".join(wrong) or f"{len(uses)} edges between {len(found)} folders, none upwards")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
