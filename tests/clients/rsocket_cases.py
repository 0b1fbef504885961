"""Programs over rsockets, through ctypes: python3 rsocket_cases.py CASE [ARGS].

A case runs under "softhca run" in one process, which connects to itself, and
fails with an exception. Names that begin with child_ are processes that cases
start. See test_rsocket.py.
"""
import sys

sys.dont_write_bytecode = True
import rsocket_datagrams  # noqa: E402
import rsocket_processes  # noqa: E402
import rsocket_streams  # noqa: E402


def main():
    cases = {k[5:]: f for module in (rsocket_streams, rsocket_processes, rsocket_datagrams)
             for k, f in vars(module).items() if k.startswith("case_")}
    if sys.argv[1] == "--list":
        print("\n".join(k for k in cases if not k.startswith("child_")))
        return
    cases[sys.argv[1]]()


if __name__ == "__main__":
    main()
