/*
 * tcp_port.h - identifiers that share their port with an ordinary socket
 *
 * rdma_set_option() of level RDMA_OPTION_ID, which only this library has, with
 * an int: a kernel socket has the identifier's port, for the same service. It
 * matters where the port space is TCP's (iWARP): there the identifier listens
 * at another TCP port, and connects to another, by a rule that both ends know
 * (iw.c). Names keep the port that the program knows. The derived port may
 * belong to another program, or to another service of this kind: the programs'
 * private data have to say which one is meant.
 */
#ifndef SOFTHCA_RDMACM_TCP_PORT_H
#define SOFTHCA_RDMACM_TCP_PORT_H

#define RDMA_OPTION_ID_TCP_PORT 0x5ca0

/*
 * The service can be reached by that socket, too, so by RoCE a connection of
 * such an identifier is given up at once where the peer's host reports that
 * nobody receives RoCE. Where nobody reports anything, this asks: the int is set
 * to whether the peer has answered by anything yet, or is on this host.
 */
#define RDMA_OPTION_ID_HEARD 0x5ca1

#endif
