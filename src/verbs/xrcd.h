/*
 * xrcd.h - XRC domains
 */
#ifndef SOFTHCA_VERBS_XRCD_H
#define SOFTHCA_VERBS_XRCD_H

#include "srq.h"

#include "transport/xrc.h"

#include <net/if.h>

int shca_xrcd_open(struct ibv_context *ctx,
		   const struct ibv_xrcd_init_attr *attr,
		   struct ibv_xrcd **xrcd);
int shca_xrcd_close(struct ibv_xrcd *xrcd);
/* Gives an SRQ a number in the domain, or -errno; takes it back, after which no
 * QP takes or holds receives of it. */
int shca_xrc_srq_add(struct shca_srq *srq, struct ibv_xrcd *xrcd);
void shca_xrc_srq_remove(struct shca_srq *srq);
/*
 * A new XRC_RECV QP, which has its struct shca_xrc, enters the domain. A handle
 * goes: true if it was the last, and the caller has to destroy the QP. The QP
 * is destroyed.
 */
void shca_xrc_qp_add(struct shca_qp *qp, struct ibv_xrcd *xrcd);
bool shca_xrc_qp_close(struct shca_qp *qp);
void shca_xrc_qp_gone(struct shca_qp *real);
int shca_xrc_qp_open(struct ibv_context *ctx,
		     const struct ibv_qp_open_attr *attr, struct ibv_qp **qp);
/* An event of the QP, for all its handles, or its remote responder; its lock is
 * held. */
void shca_xrc_event(struct shca_qp *real, struct ibv_async_event *ev);
int shca_xrc_env_take(struct qp *core, uint32_t num, struct qp_recv *out);
int shca_xrc_env_pd(struct qp *core, uint32_t num, uint32_t *pd);

/*
 * What tells a domain from others in all processes: its inode, and the netdev
 * that its device is named for (false: it is of no inode, so of this process);
 * whether an SRQ is in it; the one with that key (xrc.lock held).
 */
#define SHCA_DOMAIN_KEY (16 + IFNAMSIZ)
bool shca_domain_key(const struct shca_domain *d, uint8_t key[SHCA_DOMAIN_KEY]);
bool shca_domain_has(struct shca_domain *d, uint32_t srqn);
struct shca_domain *shca_domain_find(struct engine *e,
				     const uint8_t key[SHCA_DOMAIN_KEY]);

/* The process is suspended (src/migrate): domains have no locks; it is back, and
 * their files may be others. */
void shca_domains_away(struct engine *e);
void shca_domains_back(struct engine *e);

/* For the process. */
int shca_xrc_init(struct engine *e);

#endif
