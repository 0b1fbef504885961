/*
 * cm.c - rdma_cm finds and connects the peer: by calls that wait (sync), or by
 * events of a channel (async); the ends tell each other their extensions (ECE)
 *
 *   gcc -g -o cm examples/cm.c -lrdmacm -libverbs
 *   softhca run -- ./cm sync             the server; or: async
 *   softhca run -- ./cm async localhost  the client; or: sync
 */
#include "rc.h"

#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel; /* NULL: synchronous */
static struct rc rc;
static struct ibv_mr *mr;
static char buf[64];

/* The identifier of the next event, which has to be of this type. Without a
 * channel there is nothing to do: the call before has waited. */
static struct rdma_cm_id *event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	if (!channel)
		return NULL;
	check(rdma_get_cm_event(channel, &ev), "rdma_get_cm_event");
	id = ev->id;
	if (ev->event != type)
		die(rdma_event_str(ev->event), EPROTO);
	check(rdma_ack_cm_event(ev), "rdma_ack_cm_event");
	return id;
}

/* rdma_cm knows the attributes. */
static void to_state(struct rdma_cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;

	check(rdma_init_qp_attr(id, &attr, &mask), "rdma_init_qp_attr");
	check(ibv_modify_qp(rc.qp, &attr, mask), "ibv_modify_qp");
}

/* A queue pair that rdma_create_qp() makes goes through these states by itself,
 * which leaves no moment for ECE: before RTR the peer's is set. */
static void to_rts(struct rdma_cm_id *id)
{
	struct ibv_ece ece;

	to_state(id, IBV_QPS_INIT);
	check(rdma_get_remote_ece(id, &ece), "rdma_get_remote_ece");
	printf("ECE: vendor 0x%x, options 0x%x\n", ece.vendor_id, ece.options);
	check(ibv_set_ece(rc.qp, &ece), "ibv_set_ece");
	to_state(id, IBV_QPS_RTR);
	to_state(id, IBV_QPS_RTS);
}

/* A queue pair; what is told the peer about it. */
static struct rdma_conn_param prepare(struct rdma_cm_id *id)
{
	rc_make(&rc, id->verbs);
	mr = made(ibv_reg_mr(rc.pd, buf, sizeof(buf), IBV_ACCESS_LOCAL_WRITE),
		  "ibv_reg_mr");
	return (struct rdma_conn_param){ .qp_num = rc.qp->qp_num,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
}

static void tell_ece(struct rdma_cm_id *id)
{
	struct ibv_ece ece;

	check(ibv_query_ece(rc.qp, &ece), "ibv_query_ece");
	check(rdma_set_local_ece(id, &ece), "rdma_set_local_ece");
}

static void client(struct rdma_cm_id *id, struct sockaddr *to)
{
	struct rdma_conn_param param;

	check(rdma_resolve_addr(id, NULL, to, 2000), "rdma_resolve_addr");
	event(RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, 2000), "rdma_resolve_route");
	event(RDMA_CM_EVENT_ROUTE_RESOLVED);
	param = prepare(id);
	tell_ece(id);
	check(rdma_connect(id, &param), "rdma_connect");
	event(RDMA_CM_EVENT_CONNECT_RESPONSE);
	to_rts(id);
	check(rdma_establish(id), "rdma_establish");
	strcpy(buf, "Hello by rdma_cm");
	rc_send(&rc, mr);
	check(rdma_disconnect(id), "rdma_disconnect");
	event(RDMA_CM_EVENT_DISCONNECTED);
}

/* The new identifier of the connection. */
static struct rdma_cm_id *server(struct rdma_cm_id *listener,
				 struct sockaddr *at)
{
	struct rdma_conn_param param;
	struct rdma_cm_id *id;

	check(rdma_bind_addr(listener, at), "rdma_bind_addr");
	check(rdma_listen(listener, 1), "rdma_listen");
	id = event(RDMA_CM_EVENT_CONNECT_REQUEST);
	if (!channel)
		check(rdma_get_request(listener, &id), "rdma_get_request");
	param = prepare(id);
	to_rts(id);
	rc_receive(&rc, mr);
	tell_ece(id); /* what both can do */
	check(rdma_accept(id, &param), "rdma_accept");
	event(RDMA_CM_EVENT_ESTABLISHED);
	printf("%u bytes: %s\n", completion(rc.cq).byte_len, buf);
	event(RDMA_CM_EVENT_DISCONNECTED);
	check(rdma_disconnect(id), "rdma_disconnect");
	return id;
}

int main(int argc, char *argv[])
{
	struct rdma_addrinfo *at,
		hints = { .ai_flags = argc > 2 ? 0 : RAI_PASSIVE,
			  .ai_port_space = RDMA_PS_TCP };
	struct rdma_cm_id *id, *conn;

	if (argc < 2)
		die("sync or async", EINVAL);
	if (!strcmp(argv[1], "async"))
		channel = made(rdma_create_event_channel(),
			       "rdma_create_event_channel");
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP),
	      "rdma_create_id");
	check(rdma_getaddrinfo(argv[2], PORT, &hints, &at), "rdma_getaddrinfo");
	conn = id;
	if (argc > 2)
		client(id, at->ai_dst_addr);
	else
		conn = server(id, at->ai_src_addr);
	rdma_freeaddrinfo(at);
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	rc_free(&rc);
	if (conn != id)
		check(rdma_destroy_id(conn), "rdma_destroy_id");
	check(rdma_destroy_id(id), "rdma_destroy_id");
	if (channel)
		rdma_destroy_event_channel(channel);
	return 0;
}
