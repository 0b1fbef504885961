"""A veth pair within one guest, whose ends are two hosts or one.

    apart       vethA 10.78.0.1 in namespace A,   for softhca, TCP and UDP,
                vethB 10.78.0.2 in namespace B    and for siwA and siwB
    together    both in the guest's first one,    for rxeA and rxeB

rxe receives in the first network namespace only, and has UDP port 4791 there.
Where both addresses are of one host, its packets to itself would not leave by
an interface: so what leaves looks first into a table where each address is
behind the other's end, and only what has come in by an end is local.
"""
import contextlib

import lab

ADDRESS = {"A": "10.78.0.1", "B": "10.78.0.2"}
OTHER = {"A": "B", "B": "A"}
ENDS = tuple(ADDRESS)
TABLE = 77

SETUP = ["rdma link delete rxe0",
         "ip link add vethA mtu $MTU type veth peer name vethB mtu $MTU",
         "sysctl -qw net.ipv4.conf.all.rp_filter=0"]
for _end in ENDS:
    SETUP += [f"ip netns add {_end}", f"ip -n {_end} link set lo up", f"mkdir -p /run/{_end}"]

APART = []
for _end in ENDS:
    APART += [f"ip link set veth{_end} netns {_end}",
              f"ip netns exec {_end} sysctl -qw net.ipv6.conf.veth{_end}.disable_ipv6=1",
              f"ip -n {_end} addr add {ADDRESS[_end]}/24 dev veth{_end}",
              f"ip -n {_end} link set veth{_end} up"]
# siw's port is up if the pair is then, and not later.
APART += [f"ip netns exec {end} rdma link add siw{end} type siw netdev veth{end}" for end in ENDS]

REJOIN = [*(f"rdma link delete siw{end}" for end in ENDS),
          *(f"ip -n {end} link set veth{end} netns 1" for end in ENDS)]

TOGETHER = []
for _end in ENDS:
    TOGETHER += [f"sysctl -qw net.ipv6.conf.veth{_end}.disable_ipv6=1 net.ipv4.conf.veth{_end}.rp_filter=0 "
                 f"net.ipv4.conf.veth{_end}.accept_local=1",
                 f"ip addr add {ADDRESS[_end]}/24 dev veth{_end} noprefixroute",
                 f"ip link set veth{_end} up",
                 f"ip rule add pref 10 iif veth{_end} lookup local"]
for _end in ENDS:
    TOGETHER += [f"ip route add {ADDRESS[OTHER[_end]]} dev veth{_end} src {ADDRESS[_end]} table {TABLE}",
                 f"ip neigh replace {ADDRESS[OTHER[_end]]} dev veth{_end} nud permanent "
                 f"lladdr $(cat /sys/class/net/veth{OTHER[_end]}/address)",
                 f"rdma link add rxe{_end} type rxe netdev veth{_end}"]
TOGETHER += [f"ip rule add pref 20 lookup {TABLE}",
             "ip rule add pref 100 lookup local",
             "ip rule del pref 0"]

SEPARATE = ["ip rule add pref 0 lookup local",
            *(f"ip rule del pref {pref}" for pref in (10, 10, 20, 100)),
            *(f"rdma link delete rxe{end}" for end in ENDS),
            f"ip route flush table {TABLE}"]


class Veth:
    def __init__(self, guest, mtu):
        self.guest = guest
        self.is_apart = None
        self._do([f"MTU={mtu}", *SETUP])

    def _do(self, lines, prefix=()):
        rc, out = self.guest.run([*prefix, "sh", "-ec", "\n".join(lines)])
        if rc:
            raise lab.LabError(f"in the guest: {lines[0]}, ...: {out.strip()}")

    def put(self, apart):
        if self.is_apart is None:
            lines = []
        elif self.is_apart == apart:
            return
        else:
            lines = REJOIN if self.is_apart else SEPARATE
        self._do(lines + (APART if apart else TOGETHER))
        self.is_apart = apart

    def prefix(self, end):
        """The words before a command that runs at an end."""
        return ["nsenter", f"--net=/run/netns/{end}"] if self.is_apart else []

    def _netem(self, what):
        for end in ENDS:
            nic, ifb = f"veth{end}", f"ifb{end}"
            if what is None:
                lines = [f"tc qdisc del dev {nic} ingress", f"ip link del {ifb}",
                         f"ip link set {nic} gso_max_segs 65535"]
            else:
                lines = [f"ip link set {nic} gso_max_segs 1", *lab.netem_of_arrivals(nic, ifb, what)]
            self._do(lines, self.prefix(end))

    @contextlib.contextmanager
    def netem(self, what):
        """Disturbs RoCE packets that arrive at either end ("loss 1%", or "" for
        nothing). None: as it is without.

        A train of segments would be lost at once, so none travels: the sender's
        end divides it.
        """
        if what is not None:
            self._netem(what)
        try:
            yield
        finally:
            if what is not None and self.guest.alive():
                self._netem(None)
