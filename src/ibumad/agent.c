/*
 * agent.c - agents: which classes a program sends and answers
 *
 * An agent without methods gets the answers to what it sends. One with methods
 * is sent the requests of its class as well, from all processes and hosts, so
 * another process of this host cannot have the same class at the same port.
 */
#include "umad_internal.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

static bool serves(const struct agent *a)
{
	return a->methods[0] || a->methods[1];
}

static bool has_method(const struct agent *a, uint8_t method)
{
	return method < 128 && a->methods[method / 64] >> (method % 64) & 1;
}

static bool same_class(const struct agent *a, uint8_t class, uint8_t version,
		       uint32_t oui)
{
	return a->used && a->class == class && a->version == version &&
	       (!MAD_CLASS_IS_VENDOR2(class) || a->oui == oui);
}

int agent_of(const struct port *p, const uint8_t *mad, size_t len)
{
	const uint32_t oui =
		MAD_CLASS_IS_VENDOR2(mad[1]) && len >= MAD_RMPP_LEN + 4 ?
			get_be24(mad + MAD_RMPP_LEN + 1) :
			0;

	for (int i = 0; i < UMAD_CA_MAX_AGENTS; i++)
		if (same_class(&p->agent[i], mad[1], mad[2], oui) &&
		    has_method(&p->agent[i], mad[3]))
			return i;
	return -1;
}

int agent_by_tid(const struct port *p, uint32_t tid)
{
	for (int i = 0; i < UMAD_CA_MAX_AGENTS; i++)
		if (p->agent[i].used && p->agent[i].tid == (tid & TID_BITS))
			return i;
	return -1;
}

/* As the kernel checks it (ib_register_mad_agent). */
static int check(const struct agent *want)
{
	if (MAD_CLASS_IS_VENDOR2(want->class) && !want->oui)
		return -EINVAL;
	if (want->rmpp && want->rmpp != UMAD_RMPP_VERSION)
		return -EINVAL;
	if (want->rmpp && !mad_has_rmpp(want->class))
		return -EINVAL;
	return 0;
}

/* One that has no method of ours, or only other ones. */
static bool conflicts(const struct agent *a, const struct agent *want)
{
	return same_class(a, want->class, want->version, want->oui) &&
	       (a->methods[0] & want->methods[0] ||
		a->methods[1] & want->methods[1]);
}

/* Not 0, and not soon again. */
static uint32_t next_tid(void)
{
	static _Atomic uint32_t last;

	return atomic_fetch_add(&last, 1) % TID_BITS + 1;
}

/* The agent's number, or -errno. */
static int agent_add(struct port *p, const struct agent *want)
{
	int id = -ENOMEM, err = check(want);
	union ibv_gid at = { { 0 } };
	bool known = false;
	struct agent *a;

	if (err)
		return err;
	pthread_mutex_lock(&p->lock);
	for (int i = UMAD_CA_MAX_AGENTS - 1; i >= 0; i--) {
		a = &p->agent[i];
		if (!a->used)
			id = i;
		else if (conflicts(a, want))
			err = -EINVAL;
		known |= a->served &&
			 same_class(a, want->class, want->version, want->oui);
	}
	if (!err && id >= 0) {
		a = &p->agent[id];
		*a = *want;
		a->used = true;
		a->tid = next_tid();
	}
	pthread_mutex_unlock(&p->lock);
	if (err || id < 0 || !serves(want) || known)
		return err ? err : id;
	err = wire_serve(p, want, &at);
	pthread_mutex_lock(&p->lock);
	a = &p->agent[id];
	a->used = a->served = !err;
	a->at = at;
	pthread_mutex_unlock(&p->lock);
	return err ? err : id;
}

static void copy_mask(struct agent *a, const long *mask)
{
	if (mask)
		memcpy(a->methods, mask, sizeof(a->methods));
}

static int registered(const char *func, int fd, const struct agent *want)
{
	struct port *p = port_get(fd);
	int id;

	if (!p) {
		errno = EINVAL;
		return -EINVAL;
	}
	id = agent_add(p, want);
	port_put(p);
	if (id >= 0)
		return id;
	errno = -id;
	DEBUG(func,
	      "fd %d registering qp %d class 0x%x version %d failed: error %d",
	      fd,
	      want->class == UMAD_CLASS_SUBN_LID_ROUTED ||
			      want->class == UMAD_CLASS_SUBN_DIRECTED_ROUTE ?
		      0 :
		      1,
	      want->class, want->version, -id);
	return -EPERM;
}

int umad_register(int fd, int mgmt_class, int mgmt_version,
		  uint8_t rmpp_version, long method_mask[16 / sizeof(long)])
{
	struct agent want = { .class = (uint8_t)mgmt_class,
			      .version = (uint8_t)mgmt_version,
			      .rmpp = rmpp_version };

	/* As the original: a vendor's class is OpenIB's here. */
	if (MAD_CLASS_IS_VENDOR2(want.class))
		want.oui = UMAD_OPENIB_OUI;

	copy_mask(&want, method_mask);
	return registered("umad_register", fd, &want);
}

int umad_register_oui(int fd, int mgmt_class, uint8_t rmpp_version,
		      uint8_t oui[3], long method_mask[16 / sizeof(long)])
{
	struct agent want = { .class = (uint8_t)mgmt_class,
			      .version = 1,
			      .rmpp = rmpp_version,
			      .oui = get_be24(oui) };

	if (mgmt_class < UMAD_CLASS_VENDOR_RANGE2_START ||
	    mgmt_class > UMAD_CLASS_VENDOR_RANGE2_END) {
		DEBUG("umad_register_oui",
		      "mgmt class %d not in vendor range 2", mgmt_class);
		errno = EINVAL;
		return -EINVAL;
	}
	copy_mask(&want, method_mask);
	return registered("umad_register_oui", fd, &want);
}

int umad_register2(int fd, struct umad_reg_attr *attr, uint32_t *agent_id)
{
	struct agent want;
	int id;

	if (!attr || !agent_id)
		return EINVAL;
	if (attr->flags & ~(uint32_t)UMAD_USER_RMPP) {
		attr->flags = UMAD_USER_RMPP;
		return EINVAL;
	}
	if (MAD_CLASS_IS_VENDOR2(attr->mgmt_class) &&
	    (!attr->oui || attr->oui > 0xffffff))
		return EINVAL;
	want = (struct agent){
		.class = attr->mgmt_class,
		.version = attr->mgmt_class_version,
		.rmpp = attr->rmpp_version,
		.user_rmpp = attr->flags & UMAD_USER_RMPP,
		.oui = MAD_CLASS_IS_VENDOR2(attr->mgmt_class) ? attr->oui : 0,
		.methods = { attr->method_mask[0], attr->method_mask[1] },
	};
	id = registered("umad_register2", fd, &want);
	if (id < 0)
		return errno;
	*agent_id = (uint32_t)id;
	return 0;
}

/* Another agent of this class, with other methods, is what others find instead. */
static bool inherit(struct port *p, const struct agent *gone)
{
	struct agent *a;

	for (int i = 0; i < UMAD_CA_MAX_AGENTS; i++) {
		a = &p->agent[i];
		if (!serves(a) ||
		    !same_class(a, gone->class, gone->version, gone->oui))
			continue;
		a->at = gone->at;
		a->served = true;
		return true;
	}
	return false;
}

int umad_unregister(int fd, int agentid)
{
	struct port *p = port_get(fd);
	struct agent gone = { 0 };
	struct sent *s, *next;

	if (p && agentid >= 0 && agentid < UMAD_CA_MAX_AGENTS) {
		pthread_mutex_lock(&p->lock);
		gone = p->agent[agentid];
		p->agent[agentid] = (struct agent){ 0 };
		for (s = gone.used ? p->sent : NULL; s; s = next) {
			next = s->next;
			if (s->agent != (unsigned)agentid)
				continue;
			port_unlink(p, s);
			sent_free(s);
		}
		gone.served = gone.served && !inherit(p, &gone);
		port_arm(p);
		pthread_mutex_unlock(&p->lock);
	}
	if (gone.served)
		wire_unserve(&gone);
	if (p)
		port_put(p);
	if (gone.used)
		return 0;
	errno = EINVAL;
	return -1;
}
