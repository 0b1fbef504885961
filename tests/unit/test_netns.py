"""What holds a UDP port of this host, as 4791, does not reach the tests."""
import pathlib
import socket
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.dont_write_bytecode = True

import netns  # noqa: E402

BIND = "import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('127.0.0.1', int(sys.argv[1])))"


def bind(prefix, port):
    return subprocess.run([*prefix, sys.executable, "-c", BIND, str(port)], stderr=subprocess.DEVNULL).returncode


def test_a_port_of_the_host_is_free():
    network = netns.Network()
    try:
        if not network.prefix:
            pytest.skip(netns.REFUSED)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            # Any port: 4791 is used by the tests beside this one.
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
            assert bind([], port) == 1
            assert bind(network.prefix, port) == 0
    finally:
        network.close()


def test_a_host_that_refuses(monkeypatch):
    hold = netns.hold
    monkeypatch.setattr(netns, "hold", lambda *words: hold("sh", "-c", "echo no >&2; exit 1", *words))
    network = netns.Network()
    assert network.prefix == [] and network.holder is None
    network.close()
