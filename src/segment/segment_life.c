/*
 * segment_life.c - whether the process that owns a segment is alive
 *
 * A process loses its lock on the registry's slot with its last thread, but to
 * check that takes a system call. The kernel can report it in memory as well:
 * at the end of a thread it marks the futexes that the thread has named in its
 * robust list, see get_robust_list(2), also if the process is killed, and
 * before it executes another program. So one thread of the process names a word
 * of the segment. The list itself lies in private memory.
 *
 * The word does not: another process that writes there keeps the kernel from
 * marking it. So the registry is checked as well, but seldom.
 */
#include "segment_internal.h"

#include "base/sys.h"

#define ALIVE_NS 10000000
#define KEPT_NS 1000000000 /* where a thread keeps the segment */

_Static_assert(SEGMENT_KEEPER_DIED == FUTEX_OWNER_DIED, "the kernel's bit");

/* Keeping */

void segment_keep(struct segment *s)
{
	size_t len = 0;

	if (syscall(SYS_get_robust_list, 0, &s->robust_before, &len) ||
	    len != sizeof(s->robust))
		return;
	/* No list, but a futex that is about to be put on it: that counts. */
	s->robust.list.next = &s->robust.list;
	s->robust.futex_offset =
		(char *)&s->head->keeper - (char *)&s->robust_word;
	s->robust.list_op_pending = &s->robust_word;
	if (syscall(SYS_set_robust_list, &s->robust, sizeof(s->robust)))
		return;
	atomic_store(&s->keeper, (uint32_t)syscall(SYS_gettid));
	atomic_store(&s->head->keeper, s->keeper);
}

void segment_unkeep(struct segment *s)
{
	if (!atomic_exchange(&s->keeper, 0))
		return;
	atomic_store(&s->head->keeper, 0);
	syscall(SYS_set_robust_list, s->robust_before, sizeof(s->robust));
}

/* Looking */

bool segment_alive_within(struct segment_peer *p, uint64_t now_ns,
			  uint64_t age_ns)
{
	uint64_t seen =
		atomic_load_explicit(&p->alive_ns, memory_order_relaxed);
	pid_t pid;

	if ((int64_t)(now_ns - seen) < (int64_t)age_ns)
		return true;
	if (!registry_holder(p->segment->registry, p->slot, &pid) ||
	    pid != p->pid) {
		atomic_store(&p->dead, true);
		return false;
	}
	atomic_store_explicit(&p->alive_ns, now_ns, memory_order_relaxed);
	return segment_peer_current(p);
}

bool segment_peer_alive(struct segment_peer *p, uint64_t now_ns)
{
	if (segment_peer_gone(p)) {
		atomic_store(&p->dead, true);
		return false;
	}
	return segment_alive_within(
		p, now_ns,
		atomic_load_explicit(&p->head->keeper, memory_order_relaxed) ?
			KEPT_NS :
			ALIVE_NS);
}
