/*
 * beside.h - identifiers that stand beside an ordinary socket
 *
 * rdma_set_option() of level RDMA_OPTION_ID, which only this library has, with an
 * int: a socket of the kernel has the identifier's port, for the same service. It
 * matters where the port space is TCP's (iWARP): there it listens at another port,
 * and connects to another, by a rule that both ends know (iw.c). Names keep the
 * port that the program knows. What is found there may belong to somebody else, or
 * to another service of this kind: the programs' private data have to say which
 * one is meant.
 */
#ifndef SOFTHCA_RDMACM_BESIDE_H
#define SOFTHCA_RDMACM_BESIDE_H

#define RDMA_OPTION_ID_BESIDE 0x5ca0

#endif
