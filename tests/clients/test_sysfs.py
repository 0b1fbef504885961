"""docs/SYSFS.md: what programs read of /sys is there, each row of its first table, by the ways in which programs look."""
import os
import re
import shutil
import subprocess

import pytest

import rig

OPTIONS = ["--rails=4", "--names=mlx5_%d", "--numa=0,1", "--pci=0000:17:00.0", "--part-id=4129"]
DEV, BDF, UVERBS = "mlx5_2", "0000:19:00.0", "uverbs2"
PCI = f"/sys/devices/pci0000:19/{BDF}"
CLASS = f"/sys/class/infiniband/{DEV}"

# What there is, as a program under softhca run reads it: text of a file, names of a folder, or an errno.
READ = """
import json, os, sys
def look(path):
    try:
        if os.path.isdir(path):
            return sorted(os.listdir(path))
        return open(path).read().rstrip('\\n')
    except OSError as e:
        return f'{type(e).__name__} {e.errno}'
print(json.dumps({p: look(p) for p in sys.argv[1:]}))
"""


def read(home, *paths, options=OPTIONS):
    import json
    out = rig.Side(home).run(["/usr/bin/python3", "-c", READ, *paths], options)
    return json.loads(out)


def page_rows(heading):
    with open(os.path.join(rig.ROOT, "docs/SYSFS.md")) as f:
        part = f.read().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("| ")][1:]


def paths_of(cell):
    """The paths of a cell, with DEV and the like as here."""
    for path in re.findall(r"`([^`]+)`", cell):
        if path.startswith("BDF"):
            path = PCI + path[3:]
        yield (path.replace("DEV", DEV).replace("uverbsN", UVERBS).replace("BDF", BDF).replace("IF", "lo")
               .replace("counters/NAME", "counters").replace("/N", "/0"))


def test_every_row_of_files(home):
    rows = page_rows("Files")
    assert len(rows) > 40
    paths = [p for cell, _ in rows for p in paths_of(cell)]
    got = read(home, *paths)
    assert not [p for p in paths if str(got[p]).endswith("Error 2")], got
    for cell, content in rows:
        first = re.match(r"`([^`]*)`", content)
        words = first and first.group(1).split(",")[0]
        if words and not re.search(r"[.]{2}|--|=BDF|DEV", words) and not words.startswith(("softhca", "MT", "/dev")):
            path = next(iter(paths_of(cell)))
            if not isinstance(got[path], list) and not path.endswith(("numa_node", "vendor", "/dev")):
                assert words in got[path], (path, words, got[path])


def test_of_a_rail(home):
    got = read(home, *(f"{PCI}/{n}" for n in (
        "numa_node", "vendor", "device", "class", "driver", "net", "infiniband", "infiniband_verbs", "net/lo/ifindex",
        "current_link_speed", "local_cpulist", "local_cpus")), f"{CLASS}/hca_type", "/sys/class/net/lo/device/infiniband",
        f"/sys/bus/pci/devices/{BDF}/numa_node")
    assert got[f"{PCI}/numa_node"] == got[f"/sys/bus/pci/devices/{BDF}/numa_node"] == "1"
    assert got[f"{PCI}/device"] == "0x1021" and got[f"{PCI}/vendor"] == "0xffff" and got[f"{PCI}/class"] == "0x020000"
    assert got[f"{PCI}/net"] == ["lo"] and got[f"{PCI}/net/lo/ifindex"] == "1"
    assert got[f"{PCI}/infiniband"] == [DEV] and got[f"{PCI}/infiniband_verbs"] == [UVERBS]
    assert got["/sys/class/net/lo/device/infiniband"] == ["mlx5_0"]  # the first of four
    assert got[f"{CLASS}/hca_type"] == "MT4129"
    cpus = {c for part in got[f"{PCI}/local_cpulist"].split(",") for c in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
    assert int(got[f"{PCI}/local_cpus"].replace(",", ""), 16) == sum(1 << c for c in cpus)


def test_gids(home):
    """As long as the table, as the kernel has it: what is empty cannot be read."""
    port = f"{CLASS}/ports/1"
    got = read(home, f"{port}/gids", f"{port}/gid_attrs/types", f"{port}/gid_attrs/ndevs", f"{port}/gids/0", f"{port}/gids/9",
               *(f"{port}/gid_attrs/{a}/{i}" for a in ("types", "ndevs") for i in (0, 9)))
    table = sorted(map(str, range(16)))
    assert got[f"{port}/gids"] == got[f"{port}/gid_attrs/types"] == got[f"{port}/gid_attrs/ndevs"] == table
    assert got[f"{port}/gids/0"] == "0000:0000:0000:0000:0000:ffff:7f00:0004" and not got[f"{port}/gids/9"].strip("0:")
    assert [got[f"{port}/gid_attrs/{a}/{i}"] for a in ("types", "ndevs") for i in (0, 9)] == \
        ["RoCE v2", "OSError 22", "lo", "OSError 22"]


COUNTERS = """VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards
port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets""".split()


def test_counters_are_all_there(home):
    base = f"{CLASS}/ports/1/counters"
    got = read(home, base, *(f"{base}/{c}" for c in COUNTERS))
    assert got.pop(base) == sorted(COUNTERS)
    assert all(v.isdigit() for v in got.values()), got


# As programs look: each prints the PCI function, or something that they take from there.
WAYS = {
    "realpath of device": (f"realpath {CLASS}/device", PCI),
    "realpath of ../..": (f"realpath {CLASS}/../..", PCI),
    "readlink": (f"readlink {CLASS}/device", f"../../../{BDF}"),
    "readlink -f": (f"readlink -f {CLASS}", f"{PCI}/infiniband/{DEV}"),
    "the class's link": (f"readlink {CLASS}", f"../../devices/pci0000:19/{BDF}/infiniband/{DEV}"),
    "of an interface": ("realpath /sys/class/net/lo/device", "/sys/devices/pci0000:17/0000:17:00.0"),
    "what was found": (f'cat "$(realpath {CLASS}/device)/numa_node"', "1"),
    "a folder and a name": (f"cd {CLASS}/device/ && cat numa_node", "1"),
    "the first word of a listing": (f"ls -l {CLASS}/device/net | sed -n 2p | sed 's/.* //'", "lo"),
    "a pattern": (f"echo /sys/class/infiniband/*/device/infiniband_verbs/uverbs*", " ".join(
        f"/sys/class/infiniband/mlx5_{i}/device/infiniband_verbs/uverbs{i}" for i in range(4))),
    "driver": (f'basename "$(readlink {CLASS}/device/driver)"', "softhca"),
    "find -L": (f"find -L {CLASS}/device/net -maxdepth 2 -name ifindex", f"{CLASS}/device/net/lo/ifindex"),
    "bus": (f"readlink /sys/bus/pci/devices/{BDF}", f"../../../devices/pci0000:19/{BDF}"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways(home, way):
    command, want = WAYS[way]
    assert rig.Side(home).run(["bash", "-c", command], OPTIONS).strip() == want


def test_of_the_c_library(home):
    """realpath(3) into a buffer, and into memory of its own; canonicalize_file_name(3); scandir(3)."""
    code = f"""
import ctypes
libc = ctypes.CDLL(None)
for f in (libc.realpath, libc.canonicalize_file_name):
    f.restype = ctypes.c_char_p
buf = ctypes.create_string_buffer(4096)
print(libc.realpath(b"{CLASS}/device", buf).decode(), buf.value.decode(), libc.realpath(b"{CLASS}/device", None).decode(),
      libc.canonicalize_file_name(b"{CLASS}/device").decode(), libc.realpath(b"/sys/class/infiniband/none", None))
"""
    assert rig.Side(home).run(["/usr/bin/python3", "-c", code], OPTIONS).split() == [PCI] * 4 + ["None"]


def test_the_rest_of_sys_is_the_real_one(home):
    code = "import os; print(sorted(os.listdir('/sys/devices')), sorted(os.listdir('/sys/class/net')), os.path.realpath('/sys/class/net/lo'))"
    assert rig.Side(home).run(["/usr/bin/python3", "-c", code], OPTIONS) == \
        subprocess.run([*home, "/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize("folder", ["/sys/bus/pci/devices/", "/sys/devices/pci0000:00"])
def test_the_machines_pci_functions_stay(home, folder):
    """Also where ours are beside them: they are found by their names."""
    if not os.path.isdir(folder):
        pytest.skip(f"this machine has no {folder}")
    out = rig.Side(home).run(["ls", folder], ["--rails=4", "--pci=0000:00:1e.0"])
    assert out.split() == subprocess.run([*home, "ls", folder], stdout=subprocess.PIPE, text=True).stdout.split()
    assert rig.Side(home).run(["cat", "/sys/bus/pci/devices/0000:00:1e.0/vendor"],
                              ["--rails=4", "--pci=0000:00:1e.0"]) == "0xffff\n"


@pytest.mark.parametrize("listed,want", [("0000:17:00.0,0000:17:00.1", ["0000:17:00.0", "0000:17:00.1", "0000:18:00.1", "0000:19:00.1"]),
                                         ("0000:ff:1f.7", ["0000:ff:1f.7", "0001:00:1f.7", "0001:01:1f.7", "0001:02:1f.7"]),
                                         ("0:2:0.0,0:1:0.0", ["0000:02:00.0", "0000:01:00.0", "0000:03:00.0", "0000:04:00.0"])])
def test_places_are_each_devices(home, listed, want):
    out = rig.Side(home).run(["bash", "-c", "for d in /sys/class/infiniband/*; do basename $(realpath $d/device); done"],
                             ["--rails=4", f"--pci={listed}"])
    assert out.split() == want


def test_programs_past_the_shim(home, tmp_path):
    """What SOFTHCA_SYSFS names is the same, but for values of counters."""
    out = rig.Side(home).run(["sh", "-c", "env -u LD_PRELOAD grep -r . "
                              f"$SOFTHCA_SYSFS{CLASS}/ports/1/counters $SOFTHCA_SYSFS{CLASS}/device/numa_node"], OPTIONS)
    got = {os.path.basename(path): value for path, value in
           (line.rsplit(":", 1) for line in out.splitlines())}
    assert got.pop("numa_node") == "1" and sorted(got) == sorted(COUNTERS)
    assert {v for k, v in got.items() if k.startswith(("port_xmit_data", "unicast"))} == {"N/A (no PMA)"}
    assert got["symbol_error"] == "0"


TREE_SIZE = """
import os
size, names, seen = 0, 0, set()
for folder, _, files in os.walk(os.environ["SOFTHCA_SYSFS"]):
    for name in files:
        st = os.lstat(os.path.join(folder, name))
        names += 1
        if (st.st_dev, st.st_ino) not in seen and not os.path.islink(os.path.join(folder, name)):
            seen.add((st.st_dev, st.st_ino))
            size += -(-st.st_size // 4096) * 4096
print(names, size)
"""


def test_a_tree_is_small(home):
    """In a tmpfs each file takes a page, so files of the same content are one."""
    names, size = map(int, rig.Side(home).run(["/usr/bin/python3", "-c", TREE_SIZE], ["--rails=8"]).split())
    assert names > 8 * 100
    assert size <= 8 * 12 * 4096 + 40 * 4096, (names, size)


NODE_EXPORTER = shutil.which("prometheus-node-exporter")


@pytest.mark.skipif(not NODE_EXPORTER, reason="prometheus-node-exporter is not installed")
def test_node_exporter(home):
    """A program in Go, with its option for another /sys."""
    port = rig.free_port()
    side = rig.Side(home)
    p = rig.Proc(side, ["sh", "-c", f"exec {NODE_EXPORTER} --path.sysfs=$SOFTHCA_SYSFS/sys --collector.disable-defaults "
                        f"--collector.infiniband --web.listen-address=127.0.0.1:{port}"], OPTIONS)
    try:
        p.wait_listening(port)
        text = rig.Proc(side, ["curl", "-sS", f"http://127.0.0.1:{port}/metrics"], alone=True).done()
    finally:
        p.kill()
    for i in range(4):
        assert f'node_infiniband_info{{board_id="softhca",device="mlx5_{i}",' in text, text
        assert f'node_infiniband_state_id{{device="mlx5_{i}",port="1"}} 4' in text, text
    assert 'node_scrape_collector_success{collector="infiniband"} 1' in text, text
