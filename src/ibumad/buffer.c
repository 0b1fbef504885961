/*
 * buffer.c - what a program does with its buffer: a header for the library, and
 * the MAD behind it
 */
#include "umad_internal.h"

#include "base/say.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The buffer is a program's and begins anywhere; all fields of the header lie
 * where they are aligned if it does as malloc(3)'s. */
static struct ib_user_mad *header(void *umad)
{
	return umad;
}

void *umad_get_mad(void *umad)
{
	return header(umad)->data;
}

size_t umad_size(void)
{
	return sizeof(struct ib_user_mad);
}

int umad_status(void *umad)
{
	return (int)header(umad)->status;
}

ib_mad_addr_t *umad_get_mad_addr(void *umad)
{
	return &header(umad)->addr;
}

static int set_grh(void *umad, const ib_mad_addr_t *from, uint32_t flow_label)
{
	ib_mad_addr_t *a = &header(umad)->addr;

	a->grh_present = from ? 1 : 0;
	if (!from)
		return 0;
	memcpy(a->gid, from->gid, sizeof(a->gid));
	a->flow_label = flow_label;
	a->hop_limit = from->hop_limit;
	a->traffic_class = from->traffic_class;
	return 0;
}

int umad_set_grh(void *umad, void *mad_addr)
{
	const ib_mad_addr_t *from = mad_addr;

	return set_grh(umad, from, from ? htonl(from->flow_label) : 0);
}

int umad_set_addr(void *umad, int dlid, int dqp, int sl, int qkey)
{
	return umad_set_addr_net(umad, htons((uint16_t)dlid),
				 htonl((uint32_t)dqp), sl,
				 htonl((uint32_t)qkey));
}

int umad_set_addr_net(void *umad, __be16 dlid, __be32 dqp, int sl, __be32 qkey)
{
	ib_mad_addr_t *a = &header(umad)->addr;

	a->qpn = dqp;
	a->lid = dlid;
	a->qkey = qkey;
	a->sl = (uint8_t)sl;
	return 0;
}

int umad_set_pkey(void *umad, int pkey_index)
{
	header(umad)->addr.pkey_index = (uint16_t)pkey_index;
	return 0;
}

int umad_get_pkey(void *umad)
{
	return header(umad)->addr.pkey_index;
}

/* What is printed, on stderr as the original does */

int umad_debug_level;

int umad_debug(int level)
{
	if (level >= 0)
		umad_debug_level = level;
	return umad_debug_level;
}

void umad_addr_dump(ib_mad_addr_t *a)
{
	char gid[2 * sizeof(a->gid) + 1];

	for (size_t i = 0; i < sizeof(a->gid); i++)
		snprintf(gid + 2 * i, 3, "%02x", a->gid[i]);
	umad_warn("umad_addr_dump",
		  "qpn %u qkey 0x%x lid %u sl %d\n"
		  "grh_present %d gid_index %d hop_limit %d traffic_class %d "
		  "flow_label 0x%x pkey_index 0x%x\n"
		  "Gid 0x%s",
		  ntohl(a->qpn), ntohl(a->qkey), ntohs(a->lid), a->sl,
		  a->grh_present, a->gid_index, a->hop_limit, a->traffic_class,
		  ntohl(a->flow_label), a->pkey_index, gid);
}

void umad_dump(void *umad)
{
	struct ib_user_mad *m = header(umad);

	umad_warn("umad_dump", "agent id %u status %x timeout %u", m->agent_id,
		  m->status, m->timeout_ms);
	umad_addr_dump(&m->addr);
}

void umad_warn(const char *func, const char *fmt, ...)
{
	char line[512];
	va_list ap;
	int n, len;

	n = snprintf(line, sizeof(line), "ibwarn: [%d] %s: ", (int)getpid(),
		     func);
	va_start(ap, fmt);
	len = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (len < 0)
		return;
	n += (size_t)len < sizeof(line) - (size_t)n - 1 ?
		     len :
		     (int)sizeof(line) - n - 2;
	line[n++] = '\n';
	if (sys_write(STDERR_FILENO, line, (size_t)n) < 0)
		return; /* nothing reads stderr */
}
