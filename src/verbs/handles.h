/*
 * handles.h - which objects exist
 */
#ifndef SOFTHCA_VERBS_HANDLES_H
#define SOFTHCA_VERBS_HANDLES_H

#include "transport/shared.h"

/* An object is complete, or goes. Some get their handle here. */
void shca_live_add(struct shca_live *l, void *object, enum shca_kind kind);
void shca_live_remove(struct shca_live *l);
/*
 * Checks an object that a program passes. -ENOENT: it is not, or no longer, one
 * of that kind, or its handle was overwritten; -EINVAL: its context was; -EIO:
 * this process is a child of the one that made it.
 */
int shca_check(const void *object, enum shca_kind kind);
/* -EBUSY, and why: which objects were made with this one, a PD, a CQ, an SRQ or
 * a channel. */
int shca_busy(const void *object, const char *what);
/* It is the library's own, and there until the process ends. */
void shca_live_stays(struct shca_live *l);
/* Reports those of a context, or all (NULL), as left behind (check/check.h). */
void shca_live_leaked(const struct ibv_context *context, const char *call);
/* Calls fn for each of a kind; none comes or goes meanwhile. */
void shca_live_each(const struct engine *e, enum shca_kind kind,
		    void (*fn)(void *object, void *arg), void *arg);
void shca_live_hold(void);
void shca_live_release(void);

/* Counts an object of one kind; -ENOMEM when there are SHCA_MAX_OBJECTS. */
int shca_count(struct engine *e, enum shca_kind kind);
void shca_uncount(struct engine *e, enum shca_kind kind);

#endif
