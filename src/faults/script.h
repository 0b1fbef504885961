/*
 * script.h - the classes of packets, by their names in scripts
 */
#ifndef SOFTHCA_FAULTS_SCRIPT_H
#define SOFTHCA_FAULTS_SCRIPT_H

#define FAULT_CLASSES(C)                                                       \
	C(SEND, send)                                                          \
	C(WRITE, write)                                                        \
	C(READ, read)                                                          \
	C(READ_REQUEST, read_request)                                          \
	C(READ_RESPONSE, read_response)                                        \
	C(ATOMIC, atomic)                                                      \
	C(ACK, ack)                                                            \
	C(NAK, nak)                                                            \
	C(RNR_NAK, rnr_nak)                                                    \
	C(CNP, cnp)                                                            \
	C(MAD, mad)

#define FAULT_CLASS_ENUM(upper, lower) CLASS_##upper,
enum fault_class { FAULT_CLASSES(FAULT_CLASS_ENUM) CLASSES };
#undef FAULT_CLASS_ENUM

#endif
