/*
 * stream.h - TCP sockets as a link: bytes come and go, which are no packets
 *
 * The link is an epoll instance with the sockets of a process. Whoever makes
 * progress asks it, as other links, and it calls the owner of each socket that
 * has something to do; the owner reads and writes. So what is here serves a
 * listener, a connection that is being set up, and one that carries iWARP. Where
 * one socket alone was readable lately its owner is called at once: to try to
 * read is one system call, to be told that it is readable another.
 *
 * A stream is embedded in what its owner has. Once it has been closed, and its
 * owner wants it no more, it is given to the link (stream_give()), which frees it
 * when no thread can be about to call it.
 */
#ifndef SOFTHCA_LINK_STREAM_H
#define SOFTHCA_LINK_STREAM_H

#include "link.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct pcap;
struct pcap_tcp;
struct stream;
struct streams;

/* For all streams of a process, on the receive side. */
#define STREAM_BUFFER (256u << 10)

struct stream_ops {
	/*
	 * On the receive side: the socket has these events (EPOLLIN...); 0: it
	 * was not asked, and may be readable. Returns how much was done, in no
	 * particular unit; 0: nothing was there; or -EBUSY: it has to wait for
	 * another thread.
	 */
	int (*ready)(struct stream *s, uint32_t events, uint8_t *buffer);
	void (*free)(struct stream *s);
};

struct stream {
	const struct stream_ops *ops;
	struct streams *streams;
	int fd; /* -1: closed */
	_Atomic uint32_t
		events; /* asked for; whoever asks for them writes it */
	struct stream *next, **link; /* of those that are open; link's lock */
	struct stream *dead; /* given to the link: the next one */
	struct pcap_tcp *record; /* NULL: it is not recorded */
};

/* pcap: where connections are recorded, or NULL. */
int streams_create(struct streams **s, struct pcap *pcap);
/*
 * While it is held no socket is about to become a stream, nor about to be closed
 * as one: whoever makes a socket holds it from then until stream_open(), and who
 * forks from before to after. A copy that the child kept would keep the peer from
 * seeing the end. Innermost, but for the list's lock; not to be held in
 * stream_close().
 */
void streams_hold(struct streams *s);
void streams_release(struct streams *s);
struct link *streams_link(struct streams *s);
/*
 * Waits, for some seconds at most, until the peers' TCP have all that was sent.
 * When a process ends, the kernel goes on sending, but resets a stream on which
 * anything comes, or has come and was not read: what was lost on the way would
 * never arrive.
 */
void streams_settle(struct streams *s);

/*
 * A socket, which does not block, becomes a stream, and belongs to it. 0 or
 * -errno; then it is still the caller's.
 */
int stream_open(struct streams *streams, struct stream *s, int fd,
		uint32_t events);
/*
 * It connects, us to the peer or, where the peer is the initiator, has done so
 * the other way round: what there is to record begins.
 */
void stream_begin(struct stream *s, const struct sockaddr_storage *local,
		  const struct sockaddr_storage *peer, uint8_t tos,
		  bool initiator);
/* What has become of an attempt to connect, once it is over: 0 or -errno. */
int stream_connected(const struct stream *s);
/* What comes is not to go to the program's memory before it has been recorded,
 * or the program may have written there again. */
static inline bool stream_recorded(const struct stream *s)
{
	return __builtin_expect(s->record != NULL, 0);
}
/* Other events are wanted from now on. The caller serialises that. */
void stream_want(struct stream *s, uint32_t events);
/* Closes the socket: the peer gets what was sent, then FIN, or, where reset is
 * set or bytes were left unread, a reset. */
void stream_close(struct stream *s, bool reset);
/* Sends FIN behind what was sent. */
void stream_finish(const struct stream *s);
/* Nobody but the link refers to it any more. */
void stream_give(struct stream *s);

/*
 * A TCP socket that does not block, or -errno. It sends at once what it is given
 * (TCP_NODELAY), and finds out within half a minute that its peer is gone.
 */
int stream_socket(int family);
/* The same for one that was accepted. */
void stream_tune(int fd);
/* The largest segment that goes whole to the peer, in bytes. */
uint32_t stream_segment(const struct stream *s);
/* Whether the peer's TCP has all that was sent. */
bool stream_is_acknowledged(const struct stream *s);
/* sendmsg(2) and recvmsg(2) of a stream, which do not wait: bytes or -errno. */
ssize_t stream_send(const struct stream *s, struct iovec *iov, size_t n);
ssize_t stream_recv(const struct stream *s, struct iovec *iov, size_t n);

#endif
