"""The exports of the libraries, compared with the distribution's, with the
tables in abi/, and with what the programs installed here need."""
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("SOFTHCA_BUILD", os.path.join(ROOT, "build"))
LIB = os.path.join(BUILD, "lib")
SYSTEM = os.path.join("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "")
LOADING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loading.py")
TABLES = {"libibverbs.so.1": "ibverbs.txt", "librdmacm.so.1": "rdmacm.txt", "libibumad.so.3": "ibumad.txt"}


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def exports(path):
    """{(symbol, node): (default, binding, type)} of a shared library."""
    found = {}
    for line in readelf("--dyn-syms", path).splitlines():
        f = line.split()
        if len(f) < 8 or f[6] == "UND" or "@" not in f[7] or f[3] not in ("FUNC", "OBJECT"):
            continue
        name, default, node = re.fullmatch(r"([^@]+)(@@?)(.+)", f[7]).groups()
        found[name, node] = (default == "@@", f[4], f[3])
    return found


def nodes(path):
    """{node: parent or None} of a shared library's version definitions."""
    found, node = {}, None
    for line in readelf("-V", path).split("Version definition section")[1].splitlines():
        if m := re.search(r"Index: (\d+) .*Name: (\S+)", line):
            node = m[2] if m[1] != "1" else None  # 1 is the library itself
            if node:
                found[node] = None
        elif node and (m := re.search(r"Parent \d+: (\S+)", line)):
            found[node] = m[1]
        elif "Version needs" in line:
            break
    return found


def table(library):
    """The rows (symbol, [nodes], kind, fails) of a table in abi/."""
    rows = []
    with open(os.path.join(ROOT, "abi", TABLES[library])) as f:
        for line in f:
            cols = line.split()
            if not cols or cols[0].startswith("#"):
                continue
            assert len(cols) == 4, line
            cols[1] = [re.sub(r"^P(\d+)$", r"IBVERBS_PRIVATE_\1", n) for n in cols[1].split(",")]
            rows.append(cols)
    return rows


def doc_rows(text, columns, column=2):
    """{name: a column} of the tables in a page of docs/ that have this many
    columns, and names in the first."""
    found = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) < columns + 2 or not cells[1].startswith("`"):
            continue
        for name in re.findall(r"`(\w+)`", cells[1]):
            assert name not in found, f"{name} twice"
            found[name] = cells[column]
    return found


def system(library):
    path = os.path.join(SYSTEM, library)
    if not os.path.exists(path):
        pytest.skip(f"{path} is not installed: nothing to compare with")
    return path


@pytest.fixture(params=TABLES)
def library(request):
    return request.param


def test_has_all_of_the_systems_exports(library):
    ours, theirs = exports(f"{LIB}/{library}"), exports(system(library))
    assert len(theirs) > 38
    missing = [f"{s}@{n}" for s, n in theirs if (s, n) not in ours]
    assert not missing
    differs = [k for k in theirs if theirs[k][0] != ours[k][0] or theirs[k][2] != ours[k][2]]
    assert not differs, "default version or type"


def test_has_the_systems_nodes(library):
    ours, theirs = nodes(f"{LIB}/{library}"), nodes(system(library))
    assert len(theirs) >= 3
    assert {n: ours.get(n, "absent") for n in theirs} == theirs


def test_exports_what_the_table_says(library):
    want = {(s, n) for s, ns, _, _ in table(library) for n in ns}
    got = set(exports(f"{LIB}/{library}"))
    assert got == want


def test_every_public_symbol_is_real(library):
    """A stub is weak, so a weak symbol is one without an implementation."""
    found = exports(f"{LIB}/{library}")
    stubs = [s for s, (n, *_), kind, _ in table(library)
             if kind == "public" and found[s, n][1] == "WEAK"]
    assert not stubs, f"{len(stubs)} of {library} are stubs; write them or call them absent"


def test_absent_symbols_are_stubs(library):
    found = exports(f"{LIB}/{library}")
    real = [s for s, (n, *_), kind, _ in table(library)
            if kind == "absent" and found[s, n][1] != "WEAK"]
    assert not real, "these exist now: call them public in the table"


def test_soname_and_search_path(library):
    dynamic = readelf("-d", f"{LIB}/{library}")
    assert f"soname: [{library}]" in dynamic
    assert re.search(r"(RUNPATH|RPATH).*\[\$ORIGIN\]", dynamic), "finds its neighbours by itself"
    # Only what a minimal system has, and our own.
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert needed <= {"libc.so.6", "libsofthca.so.0", "libibverbs.so.1", "libisal.so.2",
                      "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_shared_engine_exports_one_node_of_its_own():
    found = exports(f"{LIB}/libsofthca.so.0")
    assert found
    assert not {n for _, n in found} & (set(nodes(f"{LIB}/libibverbs.so.1")) |
                                        set(nodes(f"{LIB}/librdmacm.so.1")) |
                                        set(nodes(f"{LIB}/libibumad.so.3")))
    unversioned = [line.split()[-1] for line in
                   readelf("--dyn-syms", f"{LIB}/libsofthca.so.0").splitlines()
                   if re.search(r" (FUNC|OBJECT) +(GLOBAL|WEAK) +DEFAULT +\d+ [^@]+$", line)]
    assert not unversioned, "these could take the place of a program's own"


def test_shim_exports_only_what_it_hides():
    names = {line.split()[7] for line in
             readelf("--dyn-syms", f"{LIB}/libsofthca-shim.so").splitlines()
             if re.search(r" FUNC +(GLOBAL|WEAK) +DEFAULT +\d+ ", line)}
    with open(os.path.join(ROOT, "src/shim/shim.map")) as f:
        listed = set(re.findall(r"\b(\w+);", f.read().split("global:")[1].split("local:")[0]))
    assert names == listed


# Programs and libraries that use ours, wherever this system has them.
PATTERNS = [
    "/usr/bin/ib_*", "/usr/bin/ibv_*", "/usr/bin/raw_ethernet_*", "/usr/bin/r*ping*",
    "/usr/bin/*ucm*", "/usr/bin/rdma_*", "/usr/bin/r[cs]*", "/usr/bin/udaddy",
    "/usr/bin/mckey", "/usr/bin/cmtime", "/usr/bin/riostream", "/usr/bin/rstream",
    "/usr/bin/qperf", "/usr/bin/fio", "/usr/bin/ucx_*", "/usr/bin/fi_*",
    "/usr/sbin/ib*", "/usr/sbin/srp*", "/usr/sbin/s[am]*", "/usr/sbin/perfquery", "/usr/sbin/vendstat",
    f"{SYSTEM}/libibmad.so.*", f"{SYSTEM}/libibnetdisc.so.*", f"{SYSTEM}/libosmvendor.so.*", "/usr/bin/qemu-system-*",
    f"{SYSTEM}/libmlx*.so.*", f"{SYSTEM}/libefa.so.*", f"{SYSTEM}/libmana.so.*",
    f"{SYSTEM}/libhns.so.*", f"{SYSTEM}/libfabric.so.*", f"{SYSTEM}/librpma.so.*",
    f"{SYSTEM}/libibverbs/*.so", f"{SYSTEM}/ucx/*.so*", f"{SYSTEM}/rsocket/*.so*",
    f"{SYSTEM}/openmpi/lib/openmpi3/*.so", f"{SYSTEM}/dpdk/*/*.so",
    "/usr/lib/python3/dist-packages/pyverbs/**/*.so",
]
USES = re.compile(rb"lib(ibverbs|rdmacm|ibumad|mlx5|mlx4|efa|mana|hns)\.so\.\d")


def users():
    found = set()
    for pattern in PATTERNS:
        for path in glob.glob(pattern, recursive=True):
            path = os.path.realpath(path)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as f:
                data = f.read()
            if data.startswith(b"\x7fELF") and USES.search(data):
                found.add(path)
    return sorted(found)


def unresolved(path, env):
    out = subprocess.run(["ldd", "-r", path], env={**os.environ, "LD_BIND_NOW": "1", **env},
                         text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    return {re.sub(r"\t.*| +\(.*", "", line).strip() for line in out.splitlines()
            if "undefined symbol" in line or "not found" in line}


def test_installed_programs_resolve():
    paths = users()
    if not paths:
        pytest.skip("no RDMA program or library is installed")
    bad = {}
    for path in paths:
        ours = unresolved(path, {"LD_LIBRARY_PATH": LIB})
        # Plugins lack what their host program has, with the real ones too.
        new = ours - unresolved(path, {}) if ours else ours
        if new:
            bad[path] = sorted(new)
    print(f"{len(paths)} programs and libraries")
    assert not bad


def loading(*libraries, **env):
    """What loading.py prints about a process that loads these libraries."""
    p = subprocess.run([sys.executable, LOADING, *libraries], env={**os.environ, **env}, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert p.returncode == 0, p.stdout
    return p.stdout


PRELOAD = ":".join(f"{LIB}/{n}" for n in (*TABLES, "libsofthca-shim.so"))


@pytest.mark.parametrize("names", ["libibverbs.so.1 libibverbs.so", "libibverbs.so libibverbs.so.1",
                                   "librdmacm.so librdmacm.so.1 libibverbs.so"])
@pytest.mark.parametrize("preload", [PRELOAD, ""], ids=["preload", "path"])
def test_one_copy_whatever_the_name(names, preload):
    """NCCL and others open the unversioned name first."""
    mapped = loading(*names.split(), LD_LIBRARY_PATH=LIB, LD_PRELOAD=preload).split()
    assert all(m.startswith(os.path.realpath(LIB)) for m in mapped), mapped
    assert len(mapped) == len({os.path.basename(m) for m in mapped})


@pytest.mark.parametrize("provider", ["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1",
                                      "libmana.so.1"])
def test_providers_of_the_system_load(provider):
    if not os.path.exists(f"{SYSTEM}/{provider}"):
        pytest.skip(f"{provider} is not installed")
    out = loading(provider, LD_LIBRARY_PATH=LIB)
    assert out.startswith(os.path.realpath(LIB) + "/libibverbs.so")


def test_preloaded_libraries_do_nothing_by_themselves():
    """They are in every child of a program: no thread, no descriptor, no output."""
    env = {"LD_PRELOAD": PRELOAD, "LD_LIBRARY_PATH": LIB}
    assert loading(**env) == "1 []\n"
    p = subprocess.run(["/bin/sh", "-c", "ls / >/dev/null; exit 3"], env={**os.environ, **env},
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (p.returncode, p.stdout) == (3, b"")


class Versioned:
    """Looks up symbol@node in our libibverbs."""

    def __init__(self):
        self.lib = ctypes.CDLL(f"{LIB}/libibverbs.so.1", use_errno=True)
        libc = ctypes.CDLL(None)
        self.dlvsym = libc.dlvsym
        self.dlvsym.restype = ctypes.c_void_p
        self.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]

    def __call__(self, symbol, node, restype, *argtypes):
        address = self.dlvsym(self.lib._handle, symbol.encode(), node.encode())
        assert address, f"{symbol}@{node}"
        return ctypes.CFUNCTYPE(restype, *argtypes, use_errno=True)(address)


def test_old_abi_fails():
    """The 1.0 structures differ, so every call must fail."""
    sym = Versioned()
    num = ctypes.c_int(77)
    f = sym("ibv_get_device_list", "IBVERBS_1.0", ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    ctypes.set_errno(0)
    assert f(ctypes.byref(num)) is None
    assert ctypes.get_errno() == 95  # EOPNOTSUPP
    g = sym("ibv_query_gid", "IBVERBS_1.0", ctypes.c_long, ctypes.c_void_p)
    assert g(None) == -1


@pytest.mark.parametrize("node", [34, 57, 59, 64, 65])
def test_private_nodes_of_later_releases(node):
    sym = Versioned()
    name = f"IBVERBS_PRIVATE_{node}"
    assert sym("ibv_cmd_alloc_pd", name, ctypes.c_long, ctypes.c_void_p)(None) == 95
    sym(f"verbs_register_driver_{node}", name, None, ctypes.c_void_p)(None)
    log = sym("__verbs_log", name, None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p)
    log(None, 1, b"not to be seen")
    if node >= 59:
        assert sym("ibv_cmd_reg_mr_ex", name, ctypes.c_long, ctypes.c_void_p)(None) == 95


def test_generator_refuses_bad_tables(tmp_path):
    awk = shutil.which("awk")
    script = os.path.join(ROOT, "abi", "generate.awk")
    for text, why in [("a V_1.0 public\n", "four columns"), ("a V_1.0 foo -1\n", "unknown kind"),
                      ("a V_1.0 public what\n", "unknown way"),
                      ("a V_1.0 public -1\na V_1.0 public -1\n", "twice"),
                      ("a V_1.0,V_1.1 public -1\n", "one node")]:
        t = tmp_path / "t.txt"
        t.write_text(text)
        p = subprocess.run([awk, "-v", "out=stubs", "-v", "code=EIO", "-f", script, t], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.returncode and why in p.stderr, text


# Functions of libc that are cancellation points, and stderr, through which
# others are reached. base/sys.h and base/say.h replace them.
CANCELLATION_POINTS = set("""
    accept accept4 clock_nanosleep close connect creat fdatasync fsync getrandom lockf msync
    nanosleep open open64 openat openat64 pause poll ppoll pread pread64 preadv preadv2
    preadv64v2 pselect pthread_cond_clockwait pthread_cond_timedwait pthread_cond_wait
    pthread_join pwrite pwrite64 pwritev pwritev2 read readv recv recvfrom recvmmsg recvmsg
    select sem_timedwait sem_wait send sendmmsg sendmsg sendto sigtimedwait sigwait
    sigwaitinfo sleep splice stderr system usleep waitid waitpid wait write writev epoll_pwait
    epoll_pwait2 epoll_wait""".split())


def imports(name):
    return {line.split()[7].split("@")[0] for line in readelf("--dyn-syms", os.path.join(LIB, name)).splitlines()
            if len(line.split()) > 7 and line.split()[6] == "UND"}


@pytest.mark.parametrize("name", ["libsofthca.so.0", "libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3",
                                  "librspreload.so.1"])
def test_no_translations(name):
    """A fork while another thread looks for one leaves setlocale() waiting in the child."""
    assert not imports(name) & {"strerror", "strerror_l", "strerror_r", "__xpg_strerror_r", "perror", "strsignal",
                                "dcgettext", "setlocale", "syslog"}, "use sys_strerror()"


OUTSIDE_THE_ENGINE = {"cli", "ibumad", "ibverbs", "rdmacm", "rsockets", "rspreload", "shim"}


def test_no_cancellation_points():
    """A thread that is cancelled while it holds a lock of ours leaves it locked."""
    assert imports("libsofthca.so.0") & CANCELLATION_POINTS == {
        # by calls that wait for events and their acknowledgements
        "read", "pthread_cond_wait", "pthread_cond_clockwait",
        "epoll_wait",  # by the progress thread
        "pthread_join",  # where cancellation is disabled
    }, "use the functions of base/sys.h and base/say.h instead"
    for path in glob.glob(os.path.join(ROOT, "src/*/*.c")):
        if os.path.basename(os.path.dirname(path)) not in OUTSIDE_THE_ENGINE:
            with open(path) as f:
                for mode in re.findall(r'\bfopen\([^;]*"(\w+)"\)', f.read()):
                    assert "c" in mode, f"{path}: a stream is opened without \"c\""
