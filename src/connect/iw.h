/*
 * iw.h - connections of iWARP: from TCP's first packet to its last
 *
 * What the kernel's iw_cm and an RNIC's driver do between them. A connection is
 * made by TCP, to the port that the program names; the two MPA frames with the
 * programs' private data follow (iwarp/setup.h), and from then on the stream is
 * a QP's. When that ends, however it does, what has been sent still arrives, and
 * what comes in is dropped until the peer ends too.
 *
 * Until a QP has it a connection is under the connection manager's lock
 * (gsi.h), then under the QP's, and after the QP's end under the former again.
 * The manager's lock comes before a QP's, and after the link's receive side. What
 * happens under a QP's lock and concerns the user is reported a moment later, by
 * an alarm.
 */
#ifndef SOFTHCA_CONNECT_IW_H
#define SOFTHCA_CONNECT_IW_H

#include "transport/shared.h"

/* How long a peer may take: to send the frame that begins a connection, to be
 * reached by TCP, to answer our frame (or to send the message that it has
 * announced, once it has our answer), and to end what we have rejected. */
#define SHCA_IW_REQUEST_NS 5000000000ull
#define SHCA_IW_CONNECT_NS 30000000000ull
#define SHCA_IW_REPLY_NS 60000000000ull
#define SHCA_IW_REJECT_NS 1000000000ull
/* How long who connects holds up those that connect to the same address later:
 * TCP sends a SYN again after a second. */
#define SHCA_IW_TURN_NS 2000000000ull

struct shca_iw; /* a connection */
struct shca_iw_listener;

enum shca_iw_event_type {
	/* To a listener's user: iw is new, and answered by accept or reject,
	 * or closed. -EAGAIN: not now; anything else: never. */
	SHCA_IW_REQUEST,
	/* It carries the QP's messages. */
	SHCA_IW_ESTABLISHED,
	/* It has not come about: status, -ECONNREFUSED with the peer's data
	 * if the peer has rejected it. */
	SHCA_IW_FAILED,
	/* It was established and is no longer. */
	SHCA_IW_ENDED,
};

struct shca_iw_event {
	enum shca_iw_event_type type;
	struct shca_iw *iw;
	void *user;
	int status;
	const uint8_t *data; /* the peer's private data */
	size_t len;
	uint32_t ird, ord; /* reads that the peer answers, and asks for */
	const struct sockaddr_storage *local, *peer;
};

/* All of what follows is called with the connection manager's lock held; so is
 * the user's function, which may call nothing of this. */

/* For librdmacm, once: 0 or -errno. */
int shca_iw_begin(struct engine *e, int (*event)(const struct shca_iw_event *));

struct shca_iw_ask {
	struct shca_qp *qp; /* of iWARP; kept by a reference of its own */
	uint32_t ird, ord;
	const void *data;
	size_t len;
	void *user;
	/* shca_iw_connect(): who is refused does not try again, and nobody goes
	 * by the order */
	bool once;
};

/*
 * Begins to connect, or waits for its turn: one address gets the requests in the
 * order of these calls. The user hears of the outcome. from has the port to bind,
 * 0 if any will do, and gets the one that was bound; the event that it is
 * established has it, too, which may be another one. 0 or -errno: -EINVAL, too
 * much private data, or the QP is in a state in which it cannot be connected.
 */
int shca_iw_connect(struct engine *e, struct shca_iw **iw,
		    struct sockaddr_storage *from,
		    const struct sockaddr_storage *to, uint8_t tos,
		    const struct shca_iw_ask *ask);
/* The answers to a request; ask->user from now on. -ECONNRESET: the peer has
 * gone meanwhile. */
int shca_iw_accept(struct shca_iw *iw, const struct shca_iw_ask *ask);
int shca_iw_reject(struct shca_iw *iw, const void *data, size_t len);
void shca_iw_set_user(struct shca_iw *iw, void *user);
/* What one that is not established waits for; false: it is. */
bool shca_iw_says(const struct shca_iw *iw, char *text, size_t size);
/* Ends it in order: what is not established is reset. The user hears of an end
 * if it was. */
void shca_iw_disconnect(struct shca_iw *iw);
/* The user wants no more of it: what is not established is reset, what is ends
 * with its QP in error. */
void shca_iw_close(struct shca_iw *iw);

/* Listens at an address, perhaps the unspecified one, of the port in it. v6only:
 * not for IPv4 as well. */
int shca_iw_listen(struct engine *e, struct shca_iw_listener **l,
		   const struct sockaddr_storage *at, bool v6only, int backlog,
		   void *user);
void shca_iw_unlisten(struct shca_iw_listener *l);

/* For the process. */
int shca_iw_init(struct engine *e);
/* The engine has stopped. */
void shca_iw_fini(struct engine *e);

#endif
