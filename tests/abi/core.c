/*
 * core.c - the core alone: a process of it, and messages between two queue pairs
 *
 * Linked with the objects of the core's folders (docs/ARCHITECTURE.md) and nothing
 * else of src, so a call of what is above them does not link. What src/process
 * assembles of all folders, this assembles of those: no connection manager,
 * iWARP, XRC between processes, checks, recordings, faults or ABI.
 */
#include "base/pool.h"
#include "link/exported_keys.h"
#include "os/guard.h"
#include "registry/registry.h"
#include "verbs/verbs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../lib/qp_masks.h"

#define ACCESS                                                                 \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ)
#define SIZE 65536u /* many packets by UDP */
#define PATIENCE_NS 20000000000ull

/* ---- what the core calls ------------------------------------------------ */

static void gsi(struct engine *e, const struct roce_rx *pkt, uint64_t now)
{
	(void)e;
	(void)pkt;
	(void)now;
}

static bool word(struct engine *e, const struct roce_rx *pkt,
		 struct engine_qp **qp, struct roce_rx *inner, uint64_t now)
{
	(void)e;
	(void)pkt;
	(void)qp;
	(void)inner;
	(void)now;
	return false;
}

static void settle(struct engine *e, uint64_t now)
{
	(void)e;
	(void)now;
}

static void readable(struct engine *e, int fd)
{
	if (fd == to_process(e)->netdev_fd)
		shca_netdevs_changed(e);
	else
		shca_cq_late(e, fd);
}

static const struct engine_ops engine_ops = {
	.gsi = gsi,
	.mcast = shca_mcast_rx,
	.stray = shca_timewait_rx,
	.word = word,
	.settle = settle,
	.event = shca_port_event,
	.readable = readable,
};

static void begin(struct engine *e)
{
	(void)e;
}

static void qp_gone(struct engine *e, struct shca_qp *qp)
{
	(void)e;
	(void)qp;
}

static const struct shca_process_ops process_ops = { .begin = begin,
						     .qp_gone = qp_gone };

static void forget(struct shca_qp *qp)
{
	(void)qp;
}

static const struct shca_xrc_ops xrc_ops = { .forget = forget };

static int complete(struct qp *core, void *cq, const struct ibv_wc *wc,
		    bool solicited)
{
	(void)core;
	return shca_cq_add(cq, wc, solicited);
}

static int srq_take(struct qp *core, void *srq, uint64_t room,
		    struct qp_recv *out)
{
	(void)core;
	return shca_srq_take(srq, room, out);
}

static void event(struct qp *core, enum ibv_event_type type)
{
	fail_msg("event %d of QP 0x%06x", type, core->qpn);
}

static struct pool reorder = POOL_INIT;

static void env_fill(struct shca_process *p)
{
	p->env = (struct roce_env){
		.base.keys = &p->memory.keys,
		.base.complete = complete,
		.base.srq_take = srq_take,
		.base.invalidate = shca_mw_env_invalidate,
		.base.bind_mw = shca_mw_env_bind,
		.base.guarded = guard_run,
		.base.copy = guard_copy,
		.base.odp_touch = shca_odp_touch,
		.base.odp_store = shca_odp_store,
		.base.event = event,
		.reorder = &reorder,
	};
	if (p->segment) {
		p->env.base.atomic_lock = shca_env_atomic_lock;
		p->env.base.atomic_unlock = shca_env_atomic_unlock;
		p->env.base.direct = &shca_direct;
	}
}

/* ---- the process -------------------------------------------------------- */

static struct shca_process *process;
static struct ibv_context *ctx;
static struct ibv_pd *pd;

/* Without shared memory, and where the test is about the wire, by UDP. */
static void host_join(struct shca_process *p)
{
	const char *why;

	if (registry_join(&p->engine.registry, config_get()->rundir, &why))
		p->engine.registry = NULL;
	if (!p->engine.registry || config_get()->wire ||
	    segment_create(&p->segment, p->engine.registry, 0))
		p->segment = NULL;
	if (p->segment)
		exported_keys_begin(p->segment, &p->memory.keys);
}

static int setup(void **state)
{
	struct shca_process *p = aligned_alloc(64, sizeof(*p));
	struct engine *e = &p->engine;
	struct ibv_device **list;
	int n;

	(void)state;
	assert_non_null(p);
	memset(p, 0, sizeof(*p));
	p->ops = &process_ops;
	p->xrc.ops = &xrc_ops;
	p->netdev_fd = -1;
	assert_int_equal(shca_keys_init(e), 0);
	host_join(p);
	env_fill(p);
	assert_int_equal(engine_init(e, &engine_ops, config_get(), e->registry,
				     p->segment, NULL),
			 0);
	assert_int_equal(shca_netdevs_init(e), 0);
	assert_int_equal(shca_cqs_init(e), 0);
	assert_int_equal(shca_mcast_init(e), 0);
	assert_int_equal(shca_xrc_init(e), 0);
	assert_int_equal(shca_timewait_init(e), 0);
	process = p;

	assert_int_equal(shca_device_list(&list, &n), 0);
	assert_true(n > 0);
	assert_int_equal(
		shca_context_create(to_device(list[0]), e, -1, NULL, &ctx), 0);
	free(list);
	assert_int_equal(shca_pd_alloc(ctx, &pd), 0);
	return 0;
}

static int teardown(void **state)
{
	struct shca_process *p = process;
	struct engine *e = &p->engine;

	(void)state;
	assert_int_equal(shca_pd_free(pd), 0);
	assert_true(shca_context_unused(ctx));
	shca_context_destroy(ctx);
	engine_stop(e);
	shca_timewait_fini(e);
	shca_netdevs_fini(e);
	engine_fini(e);
	segment_destroy(p->segment);
	if (e->registry)
		registry_leave(e->registry);
	shca_keys_fini(e);
	free(p);
	return 0;
}

/* ---- two ends ----------------------------------------------------------- */

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;
};

static void end_init(struct end *e)
{
	const struct ibv_cq_init_attr_ex cq = { .cqe = 16 };
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 8,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};

	assert_int_equal(shca_cq_create(ctx, &cq, &e->cq), 0);
	init.send_cq = init.recv_cq = e->cq;
	assert_int_equal(shca_qp_create(ctx, &init, &e->qp), 0);
	e->buf = calloc(1, SIZE);
	assert_non_null(e->buf);
	assert_int_equal(shca_mr_reg(pd, e->buf, SIZE, (uintptr_t)e->buf,
				     ACCESS, &e->mr),
			 0);
}

static void end_fini(struct end *e)
{
	assert_int_equal(shca_qp_destroy(e->qp), 0);
	assert_int_equal(shca_mr_dereg(e->mr), 0);
	assert_int_equal(shca_cq_destroy(e->cq), 0);
	free(e->buf);
}

static void connect_to(struct end *e, const struct end *peer)
{
	struct netdev_gid gid;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ACCESS,
	};

	assert_int_equal(shca_gid(to_ctx(ctx)->dev, 1, 0, &gid), 0);
	assert_int_equal(shca_qp_modify(e->qp, &a, init_mask(IBV_QPT_RC)), 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = gid.gid, .hop_limit = 1 } },
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
	};
	assert_int_equal(shca_qp_modify(e->qp, &a, rtr_mask(IBV_QPT_RC)), 0);
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.max_rd_atomic = 1,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
	};
	assert_int_equal(shca_qp_modify(e->qp, &a, rts_mask(IBV_QPT_RC)), 0);
}

static struct ibv_sge sge_of(const struct end *e)
{
	return (struct ibv_sge){ (uintptr_t)e->buf, SIZE, e->mr->lkey };
}

static void completes(struct end *e, enum ibv_wc_opcode opcode)
{
	const uint64_t until = clock_ns() + PATIENCE_NS;
	struct ibv_wc wc;
	int n;

	do {
		n = shca_cq_poll(e->cq, 1, &wc);
	} while (!n && clock_ns() < until);
	assert_int_equal(n, 1);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, opcode);
}

static void post(struct end *e, const struct end *peer,
		 enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = sge_of(e);
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)peer->buf, peer->mr->rkey },
	}, *bad;

	assert_int_equal(shca_qp_post_send(e->qp, &wr, &bad), 0);
}

static void messages(void **state)
{
	struct end a, b;
	struct ibv_sge sge;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

	(void)state;
	end_init(&a);
	end_init(&b);
	connect_to(&a, &b);
	connect_to(&b, &a);

	sge = sge_of(&b);
	assert_int_equal(shca_qp_post_recv(b.qp, &recv, &bad), 0);
	memset(a.buf, 's', SIZE);
	post(&a, &b, IBV_WR_SEND);
	completes(&b, IBV_WC_RECV);
	completes(&a, IBV_WC_SEND);
	assert_memory_equal(a.buf, b.buf, SIZE);

	memset(a.buf, 'w', SIZE);
	post(&a, &b, IBV_WR_RDMA_WRITE);
	completes(&a, IBV_WC_RDMA_WRITE);
	assert_memory_equal(a.buf, b.buf, SIZE);

	memset(b.buf, 'r', SIZE);
	post(&a, &b, IBV_WR_RDMA_READ);
	completes(&a, IBV_WC_RDMA_READ);
	assert_memory_equal(a.buf, b.buf, SIZE);

	end_fini(&a);
	end_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(messages, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
