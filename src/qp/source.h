/*
 * source.h - payload that is still where its sender has it
 *
 * A packet within the host may come without its payload: whoever receives it
 * reads that from the sender's memory straight to where it belongs. What the
 * link has to know for it stands behind struct qp_source, flat, so that the
 * whole can be copied by its size and kept with the packet.
 */
#ifndef SOFTHCA_QP_SOURCE_H
#define SOFTHCA_QP_SOURCE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct qp_source {
	/*
	 * Copies the payload's bytes from offset on into to[0..n), in that
	 * order, the last piece last. The caller has checked that they are
	 * within the packet's length. Once it has returned 0 the bytes are
	 * those that were sent. Otherwise some of to may have been written:
	 *
	 *	-ESTALE: the sender has taken back what it sent, or is gone:
	 *		 the packet is lost
	 *	-EACCES: likewise, but its QP is as it was: it has taken back
	 *		 only the memory
	 *	-EAGAIN: the sender's memory cannot be read so: the packet is to
	 *		 be sent again with its payload (struct roce_pkt.copy)
	 *	-EFAULT: some of to is not there
	 */
	int (*read)(const struct qp_source *s, uint64_t offset,
		    const struct iovec *to, size_t n);
	size_t size; /* of all of it, this struct included */
};

#endif
