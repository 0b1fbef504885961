/*
 * port.c - ports that a program has opened: their descriptors, what is sent, and
 * what waits to be fetched
 *
 * The descriptor of a port, which on hardware is that of /dev/infiniband/umadN,
 * is a timer: it has expired while there is something to fetch, and else does at
 * the next deadline of a request that nobody has answered. So poll(2) and
 * epoll(7) see both, and no thread is needed for a program that asks the fabric
 * alone.
 */
#include "umad_internal.h"

#include "rmpp.h"

#include "base/bytes.h"
#include "base/fd_table.h"
#include "base/sys.h"
#include "net/ibaddr.h"
#include "os/config.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define AT_ONCE 1 /* an instant that has passed */
#define MSEC_NS UINT64_C(1000000)
#define RETRIES_MAX 1000u

pthread_mutex_t ports_lock = PTHREAD_MUTEX_INITIALIZER;
struct port *ports;
static struct fd_table table;

/* Opening and closing */

struct port *port_get(int fd)
{
	struct port *p;

	pthread_mutex_lock(&ports_lock);
	p = fd_find(&table, fd);
	if (p)
		p->refs++;
	pthread_mutex_unlock(&ports_lock);
	return p;
}

static void port_free(struct port *p)
{
	struct packet *next;
	struct sent *s;

	while ((s = p->sent)) {
		p->sent = s->next;
		sent_free(s);
	}
	for (struct packet *k = p->head; k; k = next) {
		next = k->next;
		free(k);
	}
	rmpp_rx_free(p);
	close(p->fd);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void port_put(struct port *p)
{
	bool last;

	pthread_mutex_lock(&ports_lock);
	last = !--p->refs;
	pthread_mutex_unlock(&ports_lock);
	if (last)
		port_free(p);
}

/*
 * A fork waits until ports are whole: its child has them as well, and asks the
 * fabric by them; what comes by QP1 is its parent's.
 */
static void before_fork(void)
{
	pthread_mutex_lock(&ports_lock);
	for (struct port *p = ports; p; p = p->next)
		pthread_mutex_lock(&p->lock);
}

static void after_fork(void)
{
	for (struct port *p = ports; p; p = p->next)
		pthread_mutex_unlock(&p->lock);
	pthread_mutex_unlock(&ports_lock);
}

/* Its timer is not the parent's, whose packets leave by the parent's QP1. */
static void port_forked(struct port *p)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

	for (struct sent *s = p->sent; s; s = s->next)
		s->wire = false;
	if (fd < 0)
		return;
	dup3(fd, p->fd, O_CLOEXEC);
	close(fd);
	p->armed_ns = 0;
	port_arm(p);
}

static void in_child(void)
{
	for (struct port *p = ports; p; p = p->next)
		port_forked(p);
	after_fork();
	fabric_forked();
	wire_forked();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

static int failed(int err)
{
	errno = -err;
	return err;
}

int umad_open_port(const char *ca_name, int portnum)
{
	struct shca_device *dev = ca_resolve(ca_name, &portnum);
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	_Atomic(void *) *slot;
	uint64_t guid;
	struct port *p;

	DEBUG("umad_open_port", "ca %s port %d", ca_name ? ca_name : "(null)",
	      portnum);
	if (!dev)
		return failed(-ENODEV);
	if (!ca_port(dev, portnum, &guid))
		return failed(-EINVAL);
	pthread_once(&once, watch_forks);
	if (fabric_open(dev))
		return failed(-EIO);
	p = calloc(1, sizeof(*p));
	if (!p)
		return failed(-EIO);
	p->fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	slot = fd_slot(&table, p->fd, true);
	if (!slot) {
		if (p->fd >= 0)
			close(p->fd);
		free(p);
		return failed(-EIO);
	}
	p->dev = dev;
	p->guid = guid;
	p->refs = 1;
	p->tail = &p->head;
	p->sent_tail = &p->sent;
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_lock(&ports_lock);
	p->next = ports;
	ports = p;
	atomic_store(slot, p);
	pthread_mutex_unlock(&ports_lock);
	return p->fd;
}

int umad_open_smi_port(const char *ca_name, int portnum)
{
	int port = portnum;
	struct shca_device *dev = ca_resolve(ca_name, &port);

	if (!dev || !ca_has_smi(dev))
		return failed(-ENODEV);
	return umad_open_port(dev->dev.name, port);
}

int umad_close_port(int fd)
{
	struct port *p = NULL, **at;
	_Atomic(void *) *slot;

	DEBUG("umad_close_port", "closed fd %d", fd);
	pthread_mutex_lock(&ports_lock);
	slot = fd_slot(&table, fd, false);
	if (slot)
		p = atomic_exchange(slot, NULL);
	for (at = &ports; p && *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	pthread_mutex_unlock(&ports_lock);
	if (!p)
		return failed(-EINVAL);
	for (unsigned i = 0; i < UMAD_CA_MAX_AGENTS; i++)
		if (p->agent[i].served)
			wire_unserve(&p->agent[i]);
	port_put(p);
	return 0;
}

int umad_get_fd(int fd)
{
	return fd;
}

/* Deadlines */

void port_arm(struct port *p)
{
	struct itimerspec t = { 0 };
	uint64_t at = UINT64_MAX;

	for (struct sent *s = p->sent; s; s = s->next)
		at = min_u64(at, s->deadline_ns);
	if (p->head)
		at = AT_ONCE;
	if (at == UINT64_MAX)
		at = 0;
	if (at == p->armed_ns)
		return;
	p->armed_ns = at;
	t.it_value.tv_sec = (time_t)(at / 1000000000);
	t.it_value.tv_nsec = (long)(at % 1000000000);
	timerfd_settime(p->fd, TFD_TIMER_ABSTIME, &t, NULL);
}

void port_add(struct port *p, struct sent *s)
{
	s->next = NULL;
	*p->sent_tail = s;
	p->sent_tail = &s->next;
	p->nsent++;
	port_arm(p);
}

void sent_free(struct sent *s)
{
	rmpp_tx_free(s->rmpp);
	free(s);
}

void port_unlink(struct port *p, struct sent *s)
{
	struct sent **at = &p->sent;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (p->sent_tail == &s->next)
		p->sent_tail = at;
	p->nsent--;
}

/* As the kernel gives it: of the request there is no more than the header. */
static void expire(struct port *p)
{
	const uint64_t now = sys_now_ns();
	struct sent *s, *next;

	for (s = p->sent; s; s = next) {
		next = s->next;
		if (now < s->deadline_ns)
			continue;
		if (!port_deliver(p, s->agent, ETIMEDOUT, &s->addr, s->mad,
				  MAD_HDR_LEN))
			continue; /* once there is room */
		port_unlink(p, s);
		sent_free(s);
	}
	/* It has fired, and is set anew. */
	if (p->armed_ns && p->armed_ns <= now && p->armed_ns != AT_ONCE)
		p->armed_ns = UINT64_MAX;
	port_arm(p);
}

/* Receiving */

bool port_deliver(struct port *p, uint32_t agent, uint32_t status,
		  const ib_mad_addr_t *addr, const void *mad, size_t len)
{
	struct packet *k;

	if (p->packets == QUEUE_MADS || p->bytes + len > QUEUE_BYTES)
		return false;
	k = malloc(sizeof(*k) + len);
	if (!k)
		return false;
	*k = (struct packet){
		.agent = agent, .status = status, .addr = *addr, .len = len
	};
	memcpy(k->mad, mad, len);
	*p->tail = k;
	p->tail = &k->next;
	p->packets++;
	p->bytes += len;
	port_arm(p);
	return true;
}

/* Into the program's buffer, as far as it has room. 0, or what umad_recv()
 * returns; the message is still there then. */
static int hand_over(struct port *p, struct ib_user_mad *m, int *length)
{
	struct packet *k = p->head;
	const size_t room = (size_t)*length;
	const size_t first = k->len < MAD_LEN ? k->len : MAD_LEN;
	int err = 0;

	*length = (int)k->len;
	if (room < first)
		return -EINVAL;
	if (room < k->len)
		err = -ENOSPC;
	*m = (struct ib_user_mad){
		.agent_id = k->agent,
		.status = k->status,
		.length = (uint32_t)(sizeof(*m) + k->len),
		.addr = k->addr,
	};
	memcpy(m->data, k->mad, err ? first : k->len);
	if (err)
		return err;
	p->head = k->next;
	if (!p->head)
		p->tail = &p->head;
	p->packets--;
	p->bytes -= k->len;
	free(k);
	port_arm(p);
	return 0;
}

static int wait_for(int fd, int timeout_ms)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int n = poll(&pfd, 1, timeout_ms);

	return n == 1 ? 0 : n ? -EIO : -ETIMEDOUT;
}

int umad_recv(int fd, void *umad, int *length, int timeout_ms)
{
	const uint64_t until =
		timeout_ms > 0 ? sys_now_ns() + (uint64_t)timeout_ms * MSEC_NS :
				 UINT64_MAX;
	struct port *p;
	int err = -EWOULDBLOCK;
	uint64_t now;

	errno = 0;
	if (!umad || !length || *length < 0)
		return failed(-EINVAL);
	p = port_get(fd);
	if (!p)
		return failed(-EINVAL);
	for (;;) {
		pthread_mutex_lock(&p->lock);
		expire(p);
		if (p->head)
			err = hand_over(p, umad, length);
		pthread_mutex_unlock(&p->lock);
		if (err != -EWOULDBLOCK || !timeout_ms)
			break;
		now = sys_now_ns();
		err = timeout_ms < 0 ?
			      wait_for(fd, -1) :
		      now < until ?
			      wait_for(fd, (int)((until - now + MSEC_NS - 1) /
						 MSEC_NS)) :
			      -ETIMEDOUT;
		if (err)
			break;
		err = -EWOULDBLOCK;
	}
	port_put(p);
	if (!err)
		return (int)((struct ib_user_mad *)umad)->agent_id;
	if (err != -EIO || !errno)
		errno = -err;
	return err;
}

int umad_poll(int fd, int timeout_ms)
{
	struct port *p = port_get(fd);
	bool any;
	int err;

	if (!p)
		return failed(-EINVAL);
	/* The timer's expiry takes the kernel a moment. */
	pthread_mutex_lock(&p->lock);
	expire(p);
	any = p->head;
	pthread_mutex_unlock(&p->lock);
	err = any ? 0 : wait_for(fd, timeout_ms);
	port_put(p);
	return err;
}

/* Sending */

struct sent *port_waits(struct port *p, const uint8_t *mad,
			const union ibv_gid *from)
{
	struct sent *s;

	for (s = p->sent; s; s = s->next)
		if (s->waits && s->wire && s->mad[1] == mad[1] &&
		    gid_equal(&s->path.dgid, from) &&
		    !memcmp(s->mad + 8, mad + 8, 8))
			break;
	return s;
}

/* Whether a message is one that a port takes from a program. */
static int check(const struct agent *a, const uint8_t *mad, size_t len)
{
	const bool rmpp = a->rmpp && !a->user_rmpp && mad_has_rmpp(mad[1]) &&
			  len >= MAD_RMPP_LEN &&
			  mad[26] & UMAD_RMPP_FLAG_ACTIVE;

	if (len > (rmpp ? RMPP_MAX : MAD_LEN))
		return -EINVAL;
	if (mad[0] != UMAD_BASE_VERSION)
		return -EINVAL;
	return rmpp && len < mad_data_offset(mad[1]) ? -EINVAL : 0;
}

/*
 * As the kernel does it: the first half of a request's transaction ID is the
 * agent's, by which answers are told apart.
 */
static void stamp(struct sent *s, const struct agent *a)
{
	if (!mad_is_response(s->mad))
		put_be32(s->mad + 8, wire_tid() | a->tid);
}

static struct sent *sent_new(const struct ib_user_mad *m, size_t len)
{
	const size_t room = len < MAD_LEN ? MAD_LEN : len;
	struct sent *s = calloc(1, sizeof(*s) + room);
	const int timeout_ms = (int)m->timeout_ms;

	if (!s)
		return NULL;
	s->agent = m->agent_id;
	s->addr = m->addr;
	s->len = room;
	s->due_ns = UINT64_MAX;
	memcpy(s->mad, m->data, len);
	s->waits = timeout_ms && !mad_is_response(s->mad);
	s->sends = 1;
	s->deadline_ns = UINT64_MAX;
	if (!s->waits || timeout_ms < 0)
		return s;
	s->timeout_ms = (uint32_t)timeout_ms;
	if (m->retries > 0 && m->retries < RETRIES_MAX)
		s->sends += m->retries;
	s->deadline_ns =
		sys_now_ns() + s->timeout_ms * MSEC_NS * (uint64_t)s->sends;
	return s;
}

/* QP1 is to carry it. */
static int by_wire(struct port *p, struct sent *s, const struct agent *a)
{
	int err = wire_path(p, &s->addr, &s->path);

	if (err)
		return err;
	stamp(s, a);
	if (a->rmpp && !a->user_rmpp && rmpp_is_active(s->mad))
		err = rmpp_tx_new(s);
	s->wire = !err;
	s->due_ns = 0;
	return err;
}

/* Whom it is for the fabric knows: it has answered, nobody will, or QP1 carries it
 * to another program. s is sent, or freed. */
static int dispatch(struct port *p, struct sent *s, const struct agent *a)
{
	size_t outlen = 0;
	void *out = NULL;
	int err;

	err = fabric_ask(p, &s->addr, s->mad, s->len, &out, &outlen);
	if (err == -EREMOTE)
		err = by_wire(p, s, a) ? -ENOENT : -EREMOTE;
	pthread_mutex_lock(&p->lock);
	if (!err && s->waits &&
	    !port_deliver(p, s->agent, 0, &s->addr, out, outlen))
		err = -ENOENT; /* lost: its time will run out */
	/* What is for nobody is lost, as on a fabric, and its sender waits. */
	if (err == -EREMOTE || (err && s->waits)) {
		err = p->nsent < SENT_MADS ? 0 : -ENOMEM;
		if (!err) {
			port_add(p, s);
			s = NULL;
		}
	} else {
		err = 0;
	}
	pthread_mutex_unlock(&p->lock);
	free(out);
	if (s)
		sent_free(s);
	wire_kick();
	return err;
}

int umad_send(int fd, int agentid, void *umad, int length, int timeout_ms,
	      int retries)
{
	struct ib_user_mad *m = umad;
	struct port *p = port_get(fd);
	struct sent *s = NULL;
	struct agent a;
	int err = -EINVAL;

	DEBUG("umad_send", "fd %d agentid %d umad %p timeout %d", fd, agentid,
	      umad, timeout_ms);
	errno = 0;
	if (!p)
		return failed(-EINVAL);
	if (!umad || length < MAD_HDR_LEN || agentid < 0 ||
	    agentid >= UMAD_CA_MAX_AGENTS)
		goto out;
	m->timeout_ms = (uint32_t)timeout_ms;
	m->retries = (uint32_t)retries;
	m->agent_id = (uint32_t)agentid;
	pthread_mutex_lock(&p->lock);
	a = p->agent[agentid];
	pthread_mutex_unlock(&p->lock);
	if (a.used)
		err = check(&a, m->data, (size_t)length);
	if (err)
		goto out;
	s = sent_new(m, (size_t)length);
	if (!s) {
		err = -ENOMEM;
		goto out;
	}
	stamp(s, &a);
	err = dispatch(p, s, &a);
out:
	port_put(p);
	/* Of write(2) the original says no more. */
	if (err) {
		errno = -err;
		return -EIO;
	}
	return 0;
}
