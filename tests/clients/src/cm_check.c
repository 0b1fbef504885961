/*
 * cm_check.c - librdmacm, one situation per run: cm_check NAME
 *
 * Most situations have both ends in this one process, over 127.0.0.1 or what
 * CM_CHECK_ADDR says. Prints what is not as it should be; the exit status is
 * the number of such things. The situations are in the files beside this one,
 * by subject (cm_check.h).
 */
#include "cm_check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What is not as it should be */

int bad;

static void at(const char *file, int line)
{
	const char *name = strrchr(file, '/');

	printf("%s:%d: ", name ? name + 1 : file, line);
}

void not_so(const char *file, int line, const char *what)
{
	int err = errno;

	at(file, line);
	printf("not so: %s (errno %s)\n", what, strerror(err));
	bad++;
}

void cannot_go_on(const char *file, int line, const char *what)
{
	int err = errno;

	at(file, line);
	printf("cannot go on: %s (errno %s)\n", what, strerror(err));
	exit(100);
}

void fails(const char *file, int line, const char *what, int returned, int want)
{
	int err = errno;

	if (returned == -1 && err == want)
		return;
	at(file, line);
	printf("%s: returned %d, errno %s, not %s\n", what, returned,
	       strerror(err), strerror(want));
	bad++;
}

/* Both ends */

struct sockaddr_storage here;

struct sockaddr *addr_of(uint16_t number)
{
	static _Thread_local struct sockaddr_storage a[4];
	static _Thread_local int n;
	struct sockaddr_storage *s = &a[n++ % 4];

	*s = here;
	if (s->ss_family == AF_INET)
		((struct sockaddr_in *)s)->sin_port = htons(number);
	else
		((struct sockaddr_in6 *)s)->sin6_port = htons(number);
	return (struct sockaddr *)s;
}

struct rdma_cm_event *get(struct rdma_event_channel *ch,
			  enum rdma_cm_event_type type, int status,
			  const char *file, int line)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct rdma_cm_event *ev;

	if (poll(&p, 1, LIMIT_MS) != 1) {
		at(file, line);
		printf("no event, %s expected\n", rdma_event_str(type));
		exit(100);
	}
	NEED(!rdma_get_cm_event(ch, &ev));
	if (ev->event != type || ev->status != status) {
		at(file, line);
		printf("event %s status %d, expected %s status %d\n",
		       rdma_event_str(ev->event), ev->status,
		       rdma_event_str(type), status);
		exit(100);
	}
	return ev;
}

bool quiet(struct rdma_event_channel *ch, int ms)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };

	return poll(&p, 1, ms) == 0;
}

struct rdma_event_channel *cch, *sch;
struct rdma_cm_id *listener;
uint16_t port;

void serve_ps(enum rdma_port_space ps, int backlog)
{
	NEED(cch = rdma_create_event_channel());
	NEED(sch = rdma_create_event_channel());
	NEED(!rdma_create_id(sch, &listener, "listener", ps));
	NEED(!rdma_bind_addr(listener, addr_of(0)));
	port = ntohs(rdma_get_src_port(listener));
	NEED(port);
	NEED(!rdma_listen(listener, backlog));
}

void serve(void)
{
	serve_ps(RDMA_PS_TCP, 0);
}

struct rdma_cm_id *resolved_ps(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	NEED(!rdma_create_id(cch, &id, "client", ps));
	NEED(!rdma_resolve_addr(id, NULL, addr_of(port), 2000));
	EXPECT(cch, ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(id, 2000));
	EXPECT(cch, ROUTE_RESOLVED, 0);
	return id;
}

struct rdma_cm_id *resolved(void)
{
	return resolved_ps(RDMA_PS_TCP);
}

void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 8,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};

	NEED(!rdma_create_qp(id, NULL, &attr));
}

const struct rdma_conn_param usual = {
	.responder_resources = 2,
	.initiator_depth = 3,
	.retry_count = 7,
	.rnr_retry_count = 6,
};

void connected(struct rdma_cm_id **c, struct rdma_cm_id **s)
{
	struct rdma_conn_param param = usual;
	struct rdma_cm_event *ev;

	*c = resolved();
	add_qp(*c);
	NEED(!rdma_connect(*c, &param));
	ev = GET(sch, CONNECT_REQUEST, 0);
	*s = ev->id;
	add_qp(*s);
	NEED(!rdma_accept(*s, &ev->param.conn));
	rdma_ack_cm_event(ev);
	EXPECT(cch, ESTABLISHED, 0);
	EXPECT(sch, ESTABLISHED, 0);
}

void hang_up(struct rdma_cm_id *c, struct rdma_cm_id *s)
{
	CHECK(!rdma_disconnect(c));
	EXPECT(sch, DISCONNECTED, 0);
	CHECK(!rdma_disconnect(s));
	EXPECT(cch, DISCONNECTED, 0);
}

void drop_request(struct rdma_cm_event *ev)
{
	struct rdma_cm_id *id = ev->id;

	rdma_ack_cm_event(ev);
	rdma_destroy_id(id);
}

void all_arrived(void)
{
	struct rdma_conn_param param = usual;
	struct rdma_event_channel *ch;
	struct rdma_cm_id *l, *c;

	NEED(ch = rdma_create_event_channel());
	NEED(!rdma_create_id(ch, &l, NULL, RDMA_PS_TCP));
	NEED(!rdma_bind_addr(l, addr_of(0)));
	NEED(!rdma_listen(l, 1));
	NEED(!rdma_create_id(ch, &c, NULL, RDMA_PS_TCP));
	NEED(!rdma_resolve_addr(c, NULL, addr_of(ntohs(rdma_get_src_port(l))),
				2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	NEED(!rdma_resolve_route(c, 2000));
	EXPECT(ch, ROUTE_RESOLVED, 0);
	NEED(!rdma_connect(c, &param));
	drop_request(GET(ch, CONNECT_REQUEST, 0));
	EXPECT(ch, REJECTED, 28);
	NEED(!rdma_destroy_id(c) && !rdma_destroy_id(l));
	rdma_destroy_event_channel(ch);
}

void finish_id(struct rdma_cm_id *id)
{
	rdma_destroy_ep(id);
}

void finish(void)
{
	CHECK(!rdma_destroy_id(listener));
	CHECK(quiet(cch, 0));
	CHECK(quiet(sch, 0));
	rdma_destroy_event_channel(cch);
	rdma_destroy_event_channel(sch);
}

void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed + i * 7);
}

int many_n = 1000;

void say(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *where = getenv("CM_CHECK_ADDR");
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *ai;
	const struct situation *const all[] = { cm_connections, cm_crowds,
						cm_addresses,   cm_events,
						cm_qps,         cm_pairs };
	const bool list = argc == 2 && !strcmp(argv[1], "list");
	struct rlimit rl;

	if (!getrlimit(RLIMIT_NOFILE, &rl)) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	NEED(!getaddrinfo(where ? where : "127.0.0.1", NULL, &hints, &ai));
	memcpy(&here, ai->ai_addr, ai->ai_addrlen);
	freeaddrinfo(ai);
	if (getenv("CM_CHECK_N"))
		many_n = atoi(getenv("CM_CHECK_N"));
	for (size_t i = 0; argc == 2 && i < sizeof(all) / sizeof(all[0]); i++)
		for (const struct situation *s = all[i]; s->name; s++) {
			if (list)
				printf("%s\n", s->name);
			if (strcmp(argv[1], s->name))
				continue;
			alarm(120);
			s->run();
			printf("%s: %d\n", argv[1], bad);
			return bad;
		}
	if (list)
		return 0;
	fprintf(stderr, "usage: cm_check SITUATION | list\n");
	return 2;
}
