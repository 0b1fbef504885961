#!/usr/bin/python3
"""Runs a program to which the kernel refuses some system calls, as a container's
seccomp profile does.

    refuse.py ERRNO NAME[,NAME...] COMMAND [ARG...]
"""
import ctypes
import errno
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO = 0x7fff0000, 0x00050000
LOAD_NUMBER, EQUAL, RETURN = 0x20, 0x15, 0x06     # of struct bpf_insn
NUMBERS = {  # x86-64, and those of newer machines
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "prctl": (157, 167),
}


def refuse(numbers, err):
    """For this process from now on, and for what it executes."""
    code = struct.pack("HBBI", LOAD_NUMBER, 0, 0, 0)
    for number in numbers:
        code += struct.pack("HBBI", EQUAL, 0, 1, number)
        code += struct.pack("HBBI", RETURN, 0, 0, RET_ERRNO | err)
    code += struct.pack("HBBI", RETURN, 0, 0, RET_ALLOW)
    buf = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buf)), 16)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
            libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        sys.exit(f"no seccomp filter: {os.strerror(ctypes.get_errno())}")


def main():
    err, names, *command = sys.argv[1:]
    machine = 0 if os.uname().machine == "x86_64" else 1
    refuse([NUMBERS[n][machine] for n in names.split(",")], getattr(errno, err))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
