/*
 * context.h - contexts, their slots, and asynchronous events
 */
#ifndef SOFTHCA_VERBS_CONTEXT_H
#define SOFTHCA_VERBS_CONTEXT_H

#include "device.h"
#include "handles.h"

struct shca_async {
	struct shca_async *next;
	struct ibv_async_event ev;
};

struct shca_context {
	struct shca_device *dev;
	struct engine *engine;
	struct shca_context *next; /* in the engine's list */
	_Atomic unsigned users; /* objects made from it */

	pthread_mutex_t async_lock; /* of the queue; innermost */
	struct shca_async *async_head, **async_tail;

	struct shca_file *file; /* behind cmd_fd, or NULL */

	struct verbs_context v;
};

static inline struct shca_context *to_ctx(struct ibv_context *ctx)
{
	return container_of(ctx, struct shca_context, v.context);
}

/* With an existing command file, unless file is NULL. */
int shca_context_create(struct shca_device *dev, struct engine *e, int cmd_fd,
			struct shca_file *file, struct ibv_context **out);
/* Whether nothing depends on it, which else is reported. */
bool shca_context_unused(struct ibv_context *ctx);
void shca_context_destroy(struct ibv_context *ctx);

/*
 * An event queue's descriptor is readable while the queue is not empty: an
 * eventfd that counts its elements. shca_token_get() reads one as read(2) does,
 * blocking or not, 0 or -errno; shca_token_drop() never blocks.
 */
int shca_token_fd(void);
void shca_token_put(int fd, uint64_t n);
int shca_token_get(int fd);
void shca_token_drop(int fd);
/*
 * A thread waits until events that were fetched have been acknowledged: what it
 * has called, and what does that. It is in a list meanwhile, for who asks what
 * the process waits for. The second one is for pthread_cleanup_push().
 */
struct shca_ack_wait {
	struct shca_ack_wait *next;
	const char *call, *ack;
	uint32_t missing;
	pid_t tid;
	uint64_t since_ns;
};

void shca_ack_wait_begin(struct shca_ack_wait *w, const char *call,
			 const char *ack, uint32_t missing);
void shca_ack_wait_end(void *w);
/* That of a thread; false: it is in none. */
bool shca_ack_wait_of(pid_t tid, struct shca_ack_wait *out);
/* In the child of a fork. */
void shca_ack_waits_forked(void);

/* Waits until *completed, under mutex, equals reported; cq: whose completions'
 * events these are, or NULL. */
void shca_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond,
		    const uint32_t *completed, uint32_t reported,
		    struct ibv_cq *cq, const char *call);

void shca_async_raise(struct shca_context *ctx,
		      const struct ibv_async_event *ev);
int shca_async_get(struct ibv_context *ctx, struct ibv_async_event *ev);
void shca_async_ack(struct ibv_async_event *ev);
/*
 * For an object that is destroyed (a pointer to the public struct): drops its
 * queued events, then waits until the reported ones are acknowledged.
 */
void shca_async_drop(struct shca_context *ctx, void *object,
		     enum shca_kind kind);

/* netdevs.c: a context begins: it sees its device's addresses as they are. */
void shca_context_add(struct engine *e, struct shca_context *ctx);
void shca_context_remove(struct engine *e, struct shca_context *ctx);
/* An event of the port or the device, for all contexts. */
void shca_port_event(struct engine *e, enum ibv_event_type type,
		     const char *dev);
/* process->netdev_fd is readable. True: addresses may have changed. */
bool shca_netdevs_changed(struct engine *e);
/* They are read again. */
void shca_netdevs_rescan(struct engine *e);

/* For the process. */
int shca_netdevs_init(struct engine *e);
void shca_netdevs_fini(struct engine *e);
/* The process is suspended (src/migrate), and goes on: they are read again. */
void shca_netdevs_away(struct engine *e);
int shca_netdevs_back(struct engine *e);

#endif
